//! Progress bars of long commands.
//!
//! They are drawn on standard error, so that they never mix with data, and only if that is a terminal.
//! Otherwise a bar is hidden and costs almost nothing.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Interval of redrawing a bar without progress.
const TICK: Duration = Duration::from_millis(200);

/// A bar over `total` units (0: unknown).
pub fn bar(what: &str, total: u64) -> ProgressBar {
    let with_total = "{msg:<10} {wide_bar} {percent:>3}% {human_pos} {per_sec} {eta}";
    let without = "{msg:<10} {spinner} {human_pos} {per_sec} {elapsed}";
    draw(what, total, if total > 0 { with_total } else { without })
}

/// A bar over the bytes of a file.
pub fn bytes_bar(what: &str, total: u64) -> ProgressBar {
    draw(what, total, "{msg:<10} {wide_bar} {percent:>3}% {binary_bytes} {binary_bytes_per_sec} {eta}")
}

fn draw(what: &str, total: u64, template: &str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template(template).expect("the templates are valid"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}
