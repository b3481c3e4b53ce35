//! Where the register of a group is, if it is outside the servers: `etcd://HOST:PORT[,HOST:PORT...]/PREFIX`.
//!
//! Views carry it as the name of their register, and all servers of a group must be given the same one. So the text has
//! one form: the members of etcd in ascending order, each once.

use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "etcd://";
/// Limits that keep the name short: it is part of each view.
const ENDPOINTS_MAX: usize = 16;
const TEXT_MAX: usize = 1024;
/// Last part of the key.
const KEY: &str = "view";

/// Address of a register outside the memory servers: a key of an etcd cluster.
///
/// ```
/// use pando_fabric_net::RegisterAddress;
///
/// let address: RegisterAddress = "etcd://oak:2379,elm:2379/pools/trees".parse()?;
/// assert_eq!(address.to_string(), "etcd://elm:2379,oak:2379/pools/trees");
/// assert!("etcd://oak/trees".parse::<RegisterAddress>().is_err(), "there is no port");
/// # Ok::<(), pando_fabric_net::BadRegister>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterAddress {
    endpoints: Vec<String>,
    prefix: String,
}

/// Reason why a text is no address of a register.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the address of a register, etcd://HOST:PORT[,HOST:PORT...]/PREFIX: {reason}")]
pub struct BadRegister {
    text: String,
    reason: String,
}

impl RegisterAddress {
    /// `host:port` of each member of etcd.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The key whose value is the view.
    pub fn key(&self) -> String {
        format!("{}/{KEY}", self.prefix)
    }
}

impl FromStr for RegisterAddress {
    type Err = BadRegister;

    fn from_str(text: &str) -> Result<Self, BadRegister> {
        let bad = |reason: String| BadRegister { text: text.to_owned(), reason };
        if text.len() > TEXT_MAX {
            return Err(bad(format!("it is longer than {TEXT_MAX} bytes")));
        }
        let rest =
            text.strip_prefix(SCHEME).ok_or_else(|| bad(format!("it does not begin with {SCHEME}")))?;
        let (endpoints, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let mut endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        if let Some(wrong) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(bad(format!("`{wrong}` is not HOST:PORT")));
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(bad(format!("it names more than {ENDPOINTS_MAX} members of etcd")));
        }
        let is_part = |part: &str| !part.is_empty() && part.chars().all(is_of_prefix);
        if !prefix.split('/').all(is_part) {
            let allowed = "letters, digits, `.`, `-` and `_`, in parts between single `/`";
            return Err(bad(format!("a prefix has one or more {allowed}")));
        }
        Ok(Self { endpoints, prefix: prefix.to_owned() })
    }
}

fn is_of_prefix(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_')
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_of_host = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_of_host),
    };
    is_host
        && port.parse::<u16>().is_ok_and(|port| port > 0)
        && port.chars().all(|digit| digit.is_ascii_digit())
}

impl fmt::Display for RegisterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoints.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_form() {
        let address: RegisterAddress = "etcd://b:2,a:1,[::1]:3,b:2/x/y.z".parse().expect("valid");
        assert_eq!(address.endpoints(), ["[::1]:3", "a:1", "b:2"]);
        assert_eq!(
            (address.key().as_str(), address.to_string().as_str()),
            ("x/y.z/view", "etcd://[::1]:3,a:1,b:2/x/y.z")
        );
        assert_eq!(address.to_string().parse(), Ok(address));
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, reason) in [
            ("http://a:1/x", "does not begin with etcd://"),
            ("etcd://a/x", "`a` is not HOST:PORT"),
            ("etcd://a:0/x", "`a:0` is not HOST:PORT"),
            ("etcd://a:+1/x", "`a:+1` is not HOST:PORT"),
            ("etcd://a:1,/x", "`` is not HOST:PORT"),
            ("etcd://user@a:1/x", "is not HOST:PORT"),
            ("etcd://[::g]:1/x", "is not HOST:PORT"),
            ("etcd://a:1", "a prefix has one or more"),
            ("etcd://a:1/", "a prefix has one or more"),
            ("etcd://a:1/x//y", "a prefix has one or more"),
            ("etcd://a:1/x y", "a prefix has one or more"),
        ] {
            let error = text.parse::<RegisterAddress>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
        let many: Vec<String> = (1..=17).map(|port| format!("a:{port}")).collect();
        assert!(format!("etcd://{}/x", many.join(",")).parse::<RegisterAddress>().is_err());
        assert!(format!("etcd://a:1/{}", "x".repeat(TEXT_MAX)).parse::<RegisterAddress>().is_err());
    }
}
