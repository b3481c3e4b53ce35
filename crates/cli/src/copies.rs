//! `pando pool copies`: which memory server has copies of which memory.
//!
//! It tells what the memory servers decided last, as far as one that answers knows: who is in use, what each serves and
//! backs up, which copies are being filled, and what lacks copies.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use pando::{Copies, MemoryServerId, ServerCopies};
use serde_json::{Value, json};

use crate::args::PoolArgs;
use crate::failure::Failure;
use crate::{output, pool};

#[derive(Args, Debug)]
pub struct CopiesArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Write the table as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

pub fn run(args: &CopiesArgs) -> Result<(), Failure> {
    let config = pool::existing(&args.pool)?.read_only(true);
    let copies = pool::with_cluster(config, |cluster| Ok(cluster.copies()?))?;
    let Some(copies) = copies else {
        let pool = args.pool.pool.display();
        return Err(Failure::bad_input(format_args!(
            "{pool} has no copies; a pool gets them when it is made"
        )));
    };
    output::tell(args.json.as_deref(), || document(&copies), || table(&copies))
}

fn numbers(parts: &[MemoryServerId]) -> Vec<u16> {
    parts.iter().map(|part| part.0).collect()
}

/// The table as JSON.
pub fn document(copies: &Copies) -> Value {
    let server = |(number, of): (usize, &ServerCopies)| {
        json!({
            "server": number,
            "address": of.address,
            "in_view": of.is_in,
            "serves": numbers(&of.serves),
            "backs_up": numbers(&of.backs_up),
            "fills": numbers(&of.fills),
        })
    };
    json!({
        "view": copies.epoch,
        "replicas": copies.replicas,
        "register": copies.register,
        "lacking": numbers(&copies.lacking()),
        "servers": copies.servers.iter().enumerate().map(server).collect::<Vec<_>>(),
    })
}

fn table(copies: &Copies) -> String {
    let list = |parts: &[MemoryServerId]| match parts {
        [] => "-".to_owned(),
        parts => parts.iter().map(|part| part.to_string()).collect::<Vec<_>>().join(", "),
    };
    let register = copies.register.as_ref().map_or_else(String::new, |name| format!(", in {name}"));
    let mut text = format!("view {}{register}, {} copies\n", copies.epoch, copies.replicas);
    let mut line = |server: &str, state: &str, serves: &str, backs_up: &str, fills: &str, address: &str| {
        writeln!(text, "{server:<8}{state:<8}{serves:<10}{backs_up:<10}{fills:<10}{address}")
            .expect("writing to a string does not fail");
    };
    line("server", "state", "serves", "backs up", "fills", "address");
    for (number, of) in copies.servers.iter().enumerate() {
        let state = if of.is_in { "in" } else { "out" };
        line(
            &number.to_string(),
            state,
            &list(&of.serves),
            &list(&of.backs_up),
            &list(&of.fills),
            &of.address,
        );
    }
    let lacking = copies.lacking();
    if !lacking.is_empty() {
        writeln!(text, "of part {} there are fewer copies than there should be", list(&lacking))
            .expect("writing to a string does not fail");
    }
    text
}
