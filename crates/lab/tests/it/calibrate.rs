//! Tests that a calibration gives a section of a model.

use pando_lab::calibrate::{self, CalibrateOptions};
use pando_sim::Model;

#[test]
fn what_is_measured_is_a_section_of_a_model() {
    let options = CalibrateOptions { rounds: 3, keys: 20_000 };
    let mut rounds = Vec::new();
    let calibration =
        calibrate::run(&options, |done, of| rounds.push((done, of))).expect("it fits into memory");
    assert_eq!(rounds, [(0, 3), (1, 3), (2, 3), (3, 3)]);
    let model = Model::from_toml(&calibration.toml()).expect("a section that a model has");
    let usual = Model { compute: model.compute.clone(), ..Model::default() };
    assert_eq!(model, usual, "nothing but compute is measured");
    for measured in &calibration.measured {
        let range = measured.least_ns..=measured.most_ns;
        assert!(range.contains(&measured.median_ns) && measured.median_ns < 1e6, "{measured:?}");
    }
    let of = |name| {
        calibration.measured.iter().find(|measured| measured.name == name).map(|found| found.whole_ns())
    };
    assert_eq!(of("node_search_ns"), Some(model.compute.node_search_ns));
    assert_eq!(of("evict_ns"), Some(model.compute.evict_ns));
    // Publishing a page takes longer than copying one of its lines.
    assert!(of("admit_ns") > of("copy_line_ns"));
    let table = calibration.table();
    for measured in &calibration.measured {
        assert!(table.contains(measured.name), "{table}");
    }
}

#[test]
fn impossible_options_are_refused() {
    for options in [CalibrateOptions { rounds: 0, keys: 20_000 }, CalibrateOptions { rounds: 1, keys: 5 }] {
        let error = calibrate::run(&options, |_, _| ()).expect_err("refused").to_string();
        assert!(error.starts_with("it takes"), "{error}");
    }
}
