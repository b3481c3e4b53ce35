//! Drawings as documents: well-formed, legible to a renderer, never blank.
//!
//! The SVG is parsed, not compared with a picture: what it says and where it stands is what matters. The PNG must have
//! dark pixels where letters are, which without a font it would not.

use super::*;
use resvg::{tiny_skia::Pixmap, usvg::roxmltree};

fn series(name: &str, points: &[(f64, f64)]) -> Series {
    Series { name: name.to_owned(), points: points.to_vec(), quoted: false }
}

fn lines() -> Panel {
    Panel {
        title: "skewed <read-only> & more".to_owned(),
        shape: Shape::Lines,
        x: XAxis {
            label: "compute threads".to_owned(),
            ticks: XTicks::Numbers(vec![2.0, 36.0, 72.0, 144.0]),
        },
        y_label: "throughput (million operations/s)".to_owned(),
        y_scale: YScale::Linear,
        series: vec![
            series("cooling map", &[(2.0, 1.0), (36.0, 14.0), (144.0, 55.0)]),
            Series { quoted: true, ..series("FIFO queue", &[(2.0, 0.9), (36.0, 3.0), (144.0, f64::NAN)]) },
        ],
        references: vec![Reference { label: "the paper: 60".to_owned(), y: 60.0 }],
    }
}

fn bars() -> Panel {
    Panel {
        shape: Shape::Bars,
        x: XAxis {
            label: String::new(),
            ticks: XTicks::Names(vec!["baseline\nB+-tree".to_owned(), "+ caching".to_owned()]),
        },
        y_scale: YScale::Log,
        series: vec![
            series("skewed", &[(0.0, 0.04), (1.0, 12.0)]),
            series("uniform", &[(0.0, 0.0), (1.0, 7.0)]),
        ],
        references: Vec::new(),
        ..lines()
    }
}

fn figure() -> Figure {
    Figure {
        title: "Cooling structures of the cache over threads".to_owned(),
        panels: vec![lines(), bars()],
        notes: vec!["The paper: a FIFO queue does not scale (§5.2, Figure 4).".to_owned()],
    }
}

#[test]
fn the_svg_is_well_formed_and_says_everything() {
    let svg = figure().svg();
    let document = roxmltree::Document::parse(&svg).expect("well-formed");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let texts: Vec<String> = document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|node| node.text().unwrap_or_default().trim().to_owned())
        .collect();
    for said in [
        "Cooling structures of the cache over threads",
        "skewed <read-only> & more",
        "compute threads",
        "throughput (million operations/s)",
        "cooling map",
        "FIFO queue",
        "skewed",
        "the paper: 60",
        "baseline",
        "B+-tree",
        "0.04",
        "144",
    ] {
        assert!(texts.iter().any(|text| text == said), "{said} in {texts:?}");
    }
    assert_eq!(svg, figure().svg());
}

#[test]
fn every_text_stands_inside() {
    let svg = figure().svg();
    let document = roxmltree::Document::parse(&svg).expect("well-formed");
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
        node.attribute(name).expect("present").parse().expect("a number")
    };
    let (width, height) =
        (number(&document.root_element(), "width"), number(&document.root_element(), "height"));
    for node in document.descendants().filter(|node| node.has_tag_name("text")) {
        let (x, y) = (number(&node, "x"), number(&node, "y"));
        assert!((0.0..width).contains(&x) && (0.0..height).contains(&y), "{node:?}");
    }
}

#[test]
fn the_png_shows_lines_and_letters() {
    let picture = png(&figure().svg()).expect("rendered");
    let picture = Pixmap::decode_png(&picture).expect("a PNG");
    assert!(picture.width() > 1000 && picture.height() > 600);
    let dark = |top: u32, bottom: u32| {
        let pixels = picture.pixels().iter().enumerate();
        let row = |i: usize| i as u32 / picture.width();
        pixels.filter(|(i, pixel)| (top..bottom).contains(&row(*i)) && pixel.red() < 100).count()
    };
    // The title is letters only: without a font there would be none.
    assert!(dark(30, 90) > 500, "{}", dark(30, 90));
    assert!(dark(200, picture.height()) > 5_000);
}

#[test]
fn what_is_no_svg_is_refused() {
    assert!(png("<svg").is_err() && png("").is_err());
}

#[test]
fn an_empty_figure_can_be_drawn() {
    let panel = Panel { series: Vec::new(), references: Vec::new(), ..lines() };
    let empty = Figure { panels: vec![panel.clone(), Panel { y_scale: YScale::Log, ..panel }], ..figure() };
    png(&empty.svg()).expect("rendered");
}
