//! Tests of drawings: well-formed, legible, never blank.
//!
//! The SVG is parsed and its texts and positions are checked; it is not compared with a picture. The PNG must
//! have dark pixels at the letters, which it has only if a font was found.

use super::layout::{Area, Spot, width_of};
use super::*;
use tiny_skia::Pixmap;

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

/// The texts of a drawing as areas, and its data as strokes.
struct Drawing {
    texts: Vec<(String, Area)>,
    strokes: Vec<(Spot, Spot)>,
}

impl Drawing {
    fn of(svg: &str) -> Drawing {
        let document = roxmltree::Document::parse(svg).expect("well-formed");
        let (mut texts, mut strokes) = (Vec::new(), Vec::new());
        for node in document.descendants() {
            let number = |name: &str| node.attribute(name).and_then(|text| text.parse::<f64>().ok());
            match node.tag_name().name() {
                // Upright texts are left of the axes and are skipped.
                "text" if node.attribute("transform").is_none() => {
                    let text = node.text().unwrap_or_default().trim().to_owned();
                    let [x, y] = ["x", "y"].map(|name| number(name).expect("a place"));
                    let half = width_of(&text, number("font-size").expect("a size")) / 2.0;
                    let middle = match node.attribute("text-anchor") {
                        Some("start") => x + half,
                        Some("end") => x - half,
                        _ => x,
                    };
                    // A little less than the estimate, which has a margin.
                    texts.push((text.clone(), Area::of_text(&text, Spot { x: middle, y }).grown(-1.0)));
                }
                "polyline" if node.attribute("stroke") != Some("#E1E1E1") => {
                    let points = node.attribute("points").expect("points").split_whitespace();
                    let points: Vec<Spot> = points
                        .map(|point| {
                            let (x, y) = point.split_once(',').expect("two numbers");
                            Spot { x: x.parse().expect("a number"), y: y.parse().expect("a number") }
                        })
                        .collect();
                    strokes.extend(points.windows(2).map(|pair| (pair[0], pair[1])));
                }
                "circle" => {
                    let [x, y, r] = ["cx", "cy", "r"].map(|name| number(name).expect("a number"));
                    strokes.push((Spot { x: x - r, y }, Spot { x: x + r, y }));
                    strokes.push((Spot { x, y: y - r }, Spot { x, y: y + r }));
                }
                _ => {}
            }
        }
        Drawing { texts, strokes }
    }

    fn area_of(&self, text: &str) -> Area {
        self.texts.iter().find(|(said, _)| said == text).unwrap_or_else(|| panic!("no {text:?}")).1
    }
}

/// Texts of a drawing that overlap another text or a line; none if all are legible.
pub(crate) fn collisions(svg: &str) -> Vec<String> {
    let Drawing { texts, strokes } = Drawing::of(svg);
    let mut found = Vec::new();
    for (i, (text, area)) in texts.iter().enumerate() {
        found.extend(
            texts[..i]
                .iter()
                .filter(|(_, other)| area.overlaps(other))
                .map(|(other, _)| format!("{text:?} and {other:?}")),
        );
        if strokes.iter().any(|&(from, to)| area.is_crossed(from, to)) {
            found.push(format!("a line through {text:?}"));
        }
    }
    found
}

/// Figure 18 as measured: five lines that end at the reference line and cross each other above and below it.
fn lines_around_one() -> Panel {
    let sizes = [
        ("64 MiB", [45.56, 46.20, 45.75, 46.04, 43.51, 41.54]),
        ("128 MiB", [51.85, 54.22, 52.37, 51.04, 48.88, 45.83]),
        ("256 MiB", [63.51, 68.45, 67.33, 63.11, 58.94, 53.73]),
        ("512 MiB", [83.54, 87.37, 87.37, 85.32, 76.47, 70.13]),
        ("1024 MiB", [139.99, 141.45, 139.24, 136.25, 127.93, 114.62]),
    ];
    let series = sizes.map(|(name, mops)| {
        let points: Vec<(f64, f64)> = (0..6).map(|i| (i as f64, mops[i] / mops[5])).collect();
        series(name, &points)
    });
    Panel {
        x: XAxis {
            label: "admission probability".to_owned(),
            ticks: XTicks::Names(["1%", "5%", "10%", "20%", "50%", "100%"].map(str::to_owned).into()),
        },
        y_scale: YScale::Near,
        series: series.into(),
        references: vec![Reference { label: "every leaf admitted".to_owned(), y: 1.0 }],
        ..lines()
    }
}

#[test]
fn the_label_of_a_reference_line_stands_free_of_the_lines() {
    let figure = Figure { panels: vec![lines_around_one()], ..figure() };
    let svg = figure.svg();
    assert_eq!(collisions(&svg), Vec::<String>::new());
    let label = Drawing::of(&svg).area_of("every leaf admitted");
    assert!(label.left > 300.0 && label.top > 300.0, "below the lines, at their right: {label:?}");
    assert!(svg.contains("(axis not from 0)"));
}

#[test]
fn a_label_without_a_free_place_goes_into_a_key_above_the_axes() {
    let mut panel = lines_around_one();
    // A line through all positions beside the reference line.
    let comb: Vec<(f64, f64)> =
        (0..200).map(|i| (i as f64 / 40.0, if i % 2 == 0 { 0.5 } else { 1.5 })).collect();
    panel.series = vec![series("comb", &comb)];
    let svg = Figure { panels: vec![panel], ..figure() }.svg();
    assert_eq!(collisions(&svg), Vec::<String>::new());
    let drawing = Drawing::of(&svg);
    let highest = drawing.strokes.iter().map(|stroke| stroke.0.y.min(stroke.1.y));
    let label = drawing.area_of("every leaf admitted");
    assert!(highest.filter(|y| *y > label.bottom).count() > 100, "{label:?}");
}

#[test]
fn names_of_places_are_wrapped_where_they_are_long() {
    let names =
        ["DEX, never offloading", "DEX", "Sherman", "SMART", "P-Sherman", "P-SMART"].map(str::to_owned);
    let panel = Panel {
        x: XAxis { label: String::new(), ticks: XTicks::Names(names.into()) },
        series: vec![series(
            "one",
            &[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 1.0), (4.0, 1.0), (5.0, 2.0)],
        )],
        references: Vec::new(),
        ..bars()
    };
    let svg = Figure { panels: vec![panel.clone(), panel.clone(), panel], ..figure() }.svg();
    assert_eq!(collisions(&svg), Vec::<String>::new());
    assert!(Drawing::of(&svg).texts.iter().any(|(text, _)| text == "offloading"));
}

#[test]
fn values_of_bars_do_not_cover_each_other() {
    let names: Vec<String> = (0..9).map(|i| format!("{i}")).collect();
    let many = |name: &str, y: f64| {
        series(name, &(0..9).map(|i| (f64::from(i), y + f64::from(i))).collect::<Vec<_>>())
    };
    let panel = Panel {
        x: XAxis { label: String::new(), ticks: XTicks::Names(names) },
        y_scale: YScale::Linear,
        series: vec![many("one", 1234.5), many("two", 1233.0), many("three", 1235.0)],
        ..bars()
    };
    let svg = Figure { panels: vec![panel], ..figure() }.svg();
    assert_eq!(collisions(&svg), Vec::<String>::new());
    let svg = figure().svg();
    assert_eq!(collisions(&svg), Vec::<String>::new());
    let drawing = Drawing::of(&svg);
    assert!(
        ["0.04", "12", "7"].iter().all(|said| drawing.texts.iter().any(|(text, _)| text == said)),
        "there is room"
    );
}

#[test]
fn the_png_shows_lines_and_letters() {
    let picture = figure().png().expect("rendered");
    let picture = Pixmap::decode_png(&picture).expect("a PNG");
    assert!(picture.width() > 1000 && picture.height() > 600);
    let dark = |top: u32, bottom: u32| {
        let pixels = picture.pixels().iter().enumerate();
        let row = |i: usize| i as u32 / picture.width();
        pixels.filter(|(i, pixel)| (top..bottom).contains(&row(*i)) && pixel.red() < 100).count()
    };
    // The title consists of letters only, so without a font there would be no dark pixels.
    assert!(dark(30, 90) > 500, "{}", dark(30, 90));
    assert!(dark(200, picture.height()) > 5_000);
}

#[test]
fn an_empty_figure_can_be_drawn() {
    let panel = Panel { series: Vec::new(), references: Vec::new(), ..lines() };
    let empty = Figure { panels: vec![panel.clone(), Panel { y_scale: YScale::Log, ..panel }], ..figure() };
    empty.png().expect("rendered");
}
