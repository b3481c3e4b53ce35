//! Requests to etcd's JSON gateway, and its answers: a linearizable read of one key, and a change of it that takes effect
//! only if the key is as it was read.
//!
//! Keys and values are Base64, numbers of 64 bits are strings, and fields that are 0, empty or false are left out
//! (etcd 3.4, `api-reference-v3` and `api-grpc-gateway`).

use serde_json::{Value, json};

use super::base64;

pub(super) const RANGE: &str = "/v3/kv/range";
pub(super) const TXN: &str = "/v3/kv/txn";

/// A value of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub value: Vec<u8>,
    /// Revision of etcd that wrote it, at least 1.
    pub revision: u64,
}

/// Reads the key. Reads are linearizable unless a request says otherwise.
pub(super) fn range(key: &str) -> String {
    json!({ "key": base64::encode(key.as_bytes()) }).to_string()
}

/// Writes the key if it still is as it was `found`; if it was not, if it is still missing.
pub(super) fn swap(key: &str, found: Option<&Found>, value: &[u8]) -> String {
    let key = base64::encode(key.as_bytes());
    let compare = match found {
        Some(found) => json!({ "key": key, "target": "MOD", "mod_revision": found.revision.to_string() }),
        None => json!({ "key": key, "target": "VERSION", "version": "0" }),
    };
    let put = json!({ "request_put": { "key": key, "value": base64::encode(value) } });
    json!({ "compare": [compare], "success": [put] }).to_string()
}

fn document(answer: &[u8]) -> Result<Value, String> {
    let document: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    // Both answers have a header, so nothing else passes for an empty one.
    if document["header"].is_object() { Ok(document) } else { Err("it has no header of etcd".to_owned()) }
}

/// The value that a read found, if there is one.
pub(super) fn found(answer: &[u8]) -> Result<Option<Found>, String> {
    let document = document(answer)?;
    let first = match &document["kvs"] {
        Value::Null => return Ok(None),
        Value::Array(found) if found.is_empty() => return Ok(None),
        Value::Array(found) if found.len() == 1 => &found[0],
        _ => return Err("it has not one key".to_owned()),
    };
    let value = match &first["value"] {
        Value::Null => Some(Vec::new()),
        value => value.as_str().and_then(base64::decode),
    };
    let revision = number(&first["mod_revision"]).filter(|revision| *revision > 0);
    match (value, revision) {
        (Some(value), Some(revision)) => Ok(Some(Found { value, revision })),
        _ => Err("its value or its revision is damaged".to_owned()),
    }
}

/// Whether the key was as it was expected, and was written.
pub(super) fn swapped(answer: &[u8]) -> Result<bool, String> {
    match &document(answer)?["succeeded"] {
        Value::Null => Ok(false),
        Value::Bool(succeeded) => Ok(*succeeded),
        _ => Err("it does not say whether it succeeded".to_owned()),
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_etcd_documents_them() {
        assert_eq!(range("foo"), r#"{"key":"Zm9v"}"#);
        let document: Value = serde_json::from_str(&swap("foo", None, b"bar")).expect("JSON");
        assert_eq!(document["compare"][0], json!({"key": "Zm9v", "target": "VERSION", "version": "0"}));
        assert_eq!(document["success"][0]["request_put"], json!({"key": "Zm9v", "value": "YmFy"}));
        let found = Found { value: Vec::new(), revision: 1 << 60 };
        let document: Value = serde_json::from_str(&swap("foo", Some(&found), b"bar")).expect("JSON");
        let revision = "1152921504606846976";
        assert_eq!(document["compare"][0], json!({"key": "Zm9v", "target": "MOD", "mod_revision": revision}));
    }

    #[test]
    fn answers_of_reads() {
        let of = |kvs: &str| found(format!(r#"{{"header":{{"revision":"7"}}{kvs}}}"#).as_bytes());
        assert_eq!(of(""), Ok(None));
        assert_eq!(of(r#","kvs":[]"#), Ok(None));
        let one = r#","kvs":[{"key":"Zm9v","mod_revision":"5","version":"2","value":"YmFy"}],"count":"1""#;
        assert_eq!(of(one), Ok(Some(Found { value: b"bar".to_vec(), revision: 5 })));
        let empty = r#","kvs":[{"key":"Zm9v","mod_revision":"5"}]"#;
        assert_eq!(of(empty), Ok(Some(Found { value: Vec::new(), revision: 5 })));
        for wrong in [
            r#","kvs":{}"#,
            r#","kvs":[{"value":"YmFy"}]"#,
            r#","kvs":[{"mod_revision":"0","value":"YmFy"}]"#,
            r#","kvs":[{"mod_revision":"5","value":"?"}]"#,
            r#","kvs":[{"mod_revision":"5"},{"mod_revision":"5"}]"#,
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "{}", "[]", "null", r#"{"header":{}"#, r#"{"error":"x","code":14}"#] {
            assert!(found(wrong.as_bytes()).is_err() && swapped(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_of_changes() {
        assert_eq!(swapped(br#"{"header":{},"succeeded":true,"responses":[]}"#), Ok(true));
        assert_eq!(swapped(br#"{"header":{}}"#), Ok(false));
        assert!(swapped(br#"{"header":{},"succeeded":"yes"}"#).is_err());
    }
}
