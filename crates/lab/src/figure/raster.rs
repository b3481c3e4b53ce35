//! SVG to PNG, with an embedded font.
//!
//! DejaVu Sans comes with the crate `dejavu`. Fonts of the system are not used, so that every machine renders
//! the same pixels.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{self, fontdb};

/// Pixels of the picture per pixel of the drawing; 2 keeps text readable on fine screens.
const ZOOM: f32 = 2.0;

/// Reason why a drawing could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RasterError {
    #[error("the drawing is no SVG: {0}")]
    Svg(#[from] usvg::Error),
    #[error("a picture of {width} x {height} pixels cannot be made")]
    Size { width: u32, height: u32 },
    #[error("the picture cannot be encoded: {0}")]
    Encoding(String),
}

fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let load = || {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(dejavu::sans::regular().to_vec());
        fonts.load_font_data(dejavu::sans::bold().to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        Arc::new(fonts)
    };
    Arc::clone(FONTS.get_or_init(load))
}

/// Renders the SVG as a PNG on a white background, at twice its size.
///
/// # Errors
/// If `svg` is no SVG, or has no area.
pub fn png(svg: &str) -> Result<Vec<u8>, RasterError> {
    let options =
        usvg::Options { font_family: "DejaVu Sans".to_owned(), fontdb: fonts(), ..Default::default() };
    let tree = usvg::Tree::from_str(svg, &options)?;
    let (width, height) = ((tree.size().width() * ZOOM) as u32, (tree.size().height() * ZOOM) as u32);
    let mut picture = Pixmap::new(width, height).ok_or(RasterError::Size { width, height })?;
    picture.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(ZOOM, ZOOM), &mut picture.as_mut());
    picture.encode_png().map_err(|error| RasterError::Encoding(error.to_string()))
}
