//! Tokens of images that a request asks a provider to generate.

use super::limits::Members;
use crate::wire::json;

/// Model of OpenAI's tool for images, if it names none: the dearest of those that it may be.
pub const IMAGE_MODEL: &str = "gpt-image-1";
/// Tokens of a generated image of high quality, 1,536 by 1,024: the largest that OpenAI's guide lists for
/// its first image models.
pub const IMAGE_TOKENS: u64 = 6240;
/// Pixels of such an image.
const IMAGE_PIXELS: u64 = 1536 * 1024;
/// Pixels of the smallest image that models generate.
const LEAST_IMAGE_PIXELS: u64 = 1024 * 1024;
/// Tokens of each partial image in a stream.
const PARTIAL_IMAGE_TOKENS: u64 = 100;

/// Returns the most tokens of one generated image, by quality and size.
pub(super) fn image_tokens(members: &Members<'_>) -> u64 {
    let of = |name: &'static str| {
        members.iter().filter(move |(own, _)| own == name).map(|(_, raw)| *raw)
    };
    let sides = |raw| {
        let sides = json::string(raw)?;
        let (width, height) = sides.split_once('x')?;
        Some(width.parse::<u64>().ok()?.saturating_mul(height.parse().ok()?))
    };
    // A size that is no number may be any.
    let sized = of("size").map(|raw| sides(raw).unwrap_or(IMAGE_PIXELS)).max();
    let side = |name| of(name).filter_map(json::count).max();
    let pixels = sized.max(side("width").zip(side("height")).map(|(w, h)| w.saturating_mul(h)));
    // Models round smaller ones up.
    let pixels = pixels.map(|pixels| pixels.max(LEAST_IMAGE_PIXELS));
    // A quality divides the amount by about four.
    let shares = of("quality").map(|raw| match json::string(raw).as_deref() {
        Some("low") => 15,
        Some("medium") => 3,
        _ => 1,
    });
    let share = shares.min().unwrap_or(1);
    let whole = pixels.map_or(IMAGE_TOKENS, |pixels| {
        let scaled = u128::from(pixels) * u128::from(IMAGE_TOKENS);
        let scaled = scaled.div_ceil(u128::from(IMAGE_PIXELS));
        // A square of 1,024 takes slightly more than its share of pixels.
        u64::try_from(scaled).unwrap_or(u64::MAX).max(1).saturating_add(64)
    });
    let partial = side("partial_images").unwrap_or(0);
    (whole / share + 1).saturating_add(partial.saturating_mul(PARTIAL_IMAGE_TOKENS))
}
