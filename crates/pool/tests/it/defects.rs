//! Seeded defects: the checks of lost answers and of unwritten pages must find each.

use std::time::Instant;

use crate::support::lost::{self, CHANGES};
use pando_fabric::defect::with_defect;
use pando_pool::defect::Defect;

fn check() -> Result<u64, String> {
    let mut verbs = 0;
    for change in &CHANGES {
        verbs += lost::each_without_answers(change)?;
    }
    verbs += lost::each("add_server", lost::add_server)?;
    lost::detach_owing()?;
    Ok(verbs)
}

#[test]
fn each_defect_is_found() {
    assert!(with_defect(None::<Defect>, check).is_ok());
    for defect in Defect::ALL {
        let start = Instant::now();
        let found = with_defect(Some(defect), check).expect_err("not found");
        println!("{defect:?}: {found} ({:.2} s)", start.elapsed().as_secs_f64());
    }
}
