//! Figure 4: eviction policies by the size of the cache, beside no cache and dual access.
//!
//! Caches are warm. The throughput is modelled: what a policy keeps is the work of the real cache, and a probe of the
//! hash table and the bookkeeping of a policy cost reads of DRAM on the model.

use super::super::claims::{claim, times};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::{Cell, Claim, Experiment, Results, Setting};
use super::{COMMON, HELD_MB, HITS, QPS, best, cell, part, queries, spec, tables};
use crate::elf::{Base, ElfWork, Kind, PolicyKind, Store};
use crate::figure::Reference;

const NONE: &str = "without a cache";
const DUAL: &str = "dual access";
/// Lists that caches hold in the paper, in thousands.
const THOUSANDS: [u32; 5] = [16, 64, 256, 1_024, 4_096];
const KINDS: [(&str, Kind); 2] = [("exact match", Kind::Exact), ("range 2%", Kind::Range)];

pub(super) const FIG4: Experiment = Experiment {
    name: "elf-fig4",
    title: "Eviction policies by the size of the cache",
    source: "DAPD 2022, Figure 4, §5.4",
    shows: "Which dynamic caches make an Elf on persistent memory faster.",
    setting: "Warmed up with 100M exact matches or 100K ranges, measured over 1M or 1K. Caches of up to 4M lists. The size of queue A1 \
              of 2Q is not given; here it is that of the cache.",
    varied: "lists in the cache in the paper",
    metrics: &[QPS, HITS, HELD_MB],
    cells: fig4_cells,
    claims: fig4_claims,
    figure: |results| {
        let panels = results.panels().into_iter().map(|panel| {
            let mut shown = plot::lines(results, panel, Spacing::Names, &QPS, "modelled queries/s");
            shown.series.retain(|series| series.name != NONE && series.name != DUAL);
            let reference = |name: &str| {
                let y = results.value(panel, name, 0.0, &QPS)?;
                Some(Reference { label: name.to_owned(), y })
            };
            shown.references = [NONE, DUAL].into_iter().filter_map(reference).collect();
            if let crate::figure::XTicks::Names(names) = &mut shown.x.ticks {
                // Place 0 is that of the reference lines.
                names.remove(0);
                for point in shown.series.iter_mut().flat_map(|series| &mut series.points) {
                    point.0 -= 1.0;
                }
            }
            shown
        });
        let panels = panels.collect();
        let says = "LLA and naive are ahead of no cache at some sizes; LRU, LFU and 2Q never are.";
        plot::figure(results, panels, says)
    },
    ..COMMON
};

fn fig4_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (table, data) in tables(setting) {
        for (query, kind) in KINDS {
            let panel = format!("{query}, {table}");
            let work = |store| spec(setting, data, ElfWork::Queries(queries(setting, kind, 2, store)));
            let persistent = Store::new(Base::Persistent);
            cells.push(cell(&panel, NONE, 0.0, "-", work(persistent.clone())));
            cells.push(cell(&panel, DUAL, 0.0, "-", work(Store::new(Base::DualAccess))));
            for policy in PolicyKind::ALL {
                for thousand in THOUSANDS {
                    let lists = part(setting, f64::from(thousand) * 1_024.0);
                    let x_name = if thousand < 1_024 {
                        format!("{thousand}K")
                    } else {
                        format!("{}M", thousand / 1_024)
                    };
                    let store = persistent.clone().with_cache(policy, lists);
                    cells.push(cell(&panel, policy.name(), f64::from(thousand), x_name, work(store)));
                }
            }
        }
    }
    cells
}

fn fig4_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for panel in results.panels() {
        let none = results.value(panel, NONE, 0.0, &QPS);
        let of_best = |policy: PolicyKind| {
            let best = best(results, panel, policy.name(), &QPS)?;
            Some((best.0, best.1 / none?))
        };
        for policy in [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::TwoQueue] {
            let ours = times(of_best(policy).map(|(_, ratio)| ratio));
            let what = format!("{panel}: {} at its best size over no cache", policy.name());
            claims.push(claim(what, "falls behind", ours, "§5.4, §6"));
        }
        let (policy, paper) = if panel.starts_with("exact") {
            (PolicyKind::Lla, if panel.ends_with("uniform") { 1_024.0 } else { 64.0 })
        } else {
            (PolicyKind::Naive, 4_096.0)
        };
        let found = of_best(policy);
        let what = format!("{panel}: {} at its best size over no cache", policy.name());
        claims.push(claim(what, "ahead", times(found.map(|(_, ratio)| ratio)), "§5.4"));
        let what = format!("{panel}: best size of {}, thousand lists", policy.name());
        claims.push(claim(what, format!("{paper:.0}"), found.map(|(x, _)| format!("{x:.0}")), "§5.4"));
        let ours = results.ratio(panel, at(DUAL, 0.0), at(NONE, 0.0), &QPS);
        claims.push(claim(format!("{panel}: dual access over no cache"), "ahead", times(ours), "Figure 4"));
    }
    claims
}
