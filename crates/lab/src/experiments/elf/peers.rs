//! The conditions of TPC-H's queries on lineitem, by scans and by Elves in different layouts and orders.
//!
//! All methods must find the same rows. Methods of other projects are measured by `pando-lab-peers`, since each needs a
//! crate of its own.

use pando_workload::columns::TPCH;

use super::super::cell::metric;
use super::super::claims::claim;
use super::super::results::at;
use super::super::{Cell, Claim, Experiment, Metric, OWN, Results, Setting, plot};
use super::own::{LIMIT, MACHINE, OUTPUTS, small};
use super::{COMMON, cell, spec};
use crate::elf::{Data, ElfWork, PeerMethod};
use crate::figure::YScale;

const COUNT: Metric = metric("count", "count, measured µs", "/count/us", 1.0, 1);
const IDS: Metric = metric("ids", "ids, measured µs", "/ids/us", 1.0, 1);
const BITMAP: Metric = metric("bitmap", "bitmap, measured µs", "/bitmap/us", 1.0, 1);
const ROWS: Metric = metric("rows", "rows found", "/result_rows", 1.0, 0);

pub(super) const PEERS: Experiment = Experiment {
    name: "elf-peers",
    title: "Conditions of TPC-H by Elves and scans",
    source: OWN,
    shows: "What an Elf gives to the conditions of real queries, and which layout and order it takes.",
    setting: "The conditions on lineitem of Q1, Q6, Q10, Q12, Q14 and Q19, without the comparisons of dates in Q12. The advised order is \
              one for these six. Own columns are an Elf of the columns with a condition only. Without a gate Elves always walk. All \
              methods take turns, of whose two runs the second counts, and must find the same rows.",
    varied: "query",
    estimated: &[],
    place: MACHINE,
    sizes: |setting| {
        let (data, rounds) = sizes(setting);
        format!("{} rows like lineitem; medians of {rounds} rounds.", crate::units::count(data.rows() as u64))
    },
    metrics: &[COUNT, IDS, BITMAP, ROWS],
    cells: peers_cells,
    claims: peers_claims,
    figure: |results| {
        let panels = [&COUNT, &IDS, &BITMAP].into_iter().zip(OUTPUTS).map(|(metric, output)| {
            let mut panel = plot::bars(results, "", metric, "measured time of a query (µs)");
            output.clone_into(&mut panel.title);
            panel.y_scale = YScale::Log;
            panel
        });
        let panels = panels.filter(|panel| !panel.series.is_empty()).collect();
        plot::figure(results, panels, "")
    },
    ..COMMON
};

/// The table, and rounds whose median counts: more than for a thousand predicates, since these are six.
fn sizes(setting: &Setting) -> (Data, usize) {
    let (data, rounds) = small(setting);
    (data, 4 * rounds + 1)
}

fn peers_cells(setting: &Setting) -> Vec<Cell> {
    let (data, rounds) = sizes(setting);
    let mut cells = Vec::new();
    for (number, query) in TPCH.iter().enumerate() {
        for method in PeerMethod::ALL {
            let work = ElfWork::Peer { query: number, method, rounds };
            cells.push(cell("", method.name(), number as f64, query.name, spec(setting, data, work)));
        }
    }
    cells
}

fn peers_claims(results: &Results<'_>) -> Vec<Claim> {
    let scan = PeerMethod::Scan.name();
    let gated = PeerMethod::ColumnarAdvised.name();
    let mut claims = Vec::new();
    for (number, query) in TPCH.iter().enumerate() {
        let x = number as f64;
        for (metric, output) in [&COUNT, &IDS, &BITMAP].into_iter().zip(OUTPUTS) {
            let ours = results.ratio("", at(gated, x), at(scan, x), metric);
            let what = format!("{}, {output}: time of {gated}, over the best scan's", query.name);
            let ours = ours.map(|factor| format!("{factor:.2}"));
            claims.push(claim(what, format!("at most {LIMIT}"), ours, "-"));
        }
    }
    claims
}
