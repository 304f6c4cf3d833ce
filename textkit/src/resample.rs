//! Brings a picture to the size that a model sees. Both steps give the bytes that the models' own preprocessing gives:
//! `smart_resize` of Qwen2-VL's image processor, and bicubic resampling as Pillow does it on bytes.

use crate::meter;

/// Sizes that a model takes: multiples of `side` with a number of pixels in this range.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rules {
    pub side: u32,
    pub min_pixels: u64,
    pub max_pixels: u64,
}

/// The size that a picture gets. REQUIRES: sides of at least 1, side and max_pixels too.
pub fn target(width: u32, height: u32, rules: &Rules) -> (u32, u32) {
    let side = f64::from(rules.side);
    let (w, h) = (f64::from(width), f64::from(height));
    let (least, most) = (rules.min_pixels as f64, rules.max_pixels as f64);
    let whole = |pixels: f64| (pixels / side).round_ties_even() * side;
    let (mut new_w, mut new_h) = (whole(w), whole(h));
    if new_w * new_h < least {
        let grow = (least / (w * h)).sqrt();
        let part = |pixels: f64| (pixels * grow / side).ceil() * side;
        (new_w, new_h) = (part(w), part(h));
    }
    // Where `smart_resize` itself goes past the most, because sides are whole, the engine would refuse the picture.
    if new_w.max(side) * new_h.max(side) > most {
        let shrink = (w * h / most).sqrt();
        let longest = (most / side / side).floor() * side;
        let part = |pixels: f64| ((pixels / shrink / side).floor() * side).max(side).min(longest);
        (new_w, new_h) = (part(w), part(h));
    }
    (new_w.max(side) as u32, new_h.max(side) as u32)
}

/// Bits behind the point of a weight: 8 bits of a pixel and 2 for sums beyond one are left of an i32.
const BITS: u32 = 32 - 8 - 2;

/// Keys' cubic filter with a = -0.5.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Input samples and their weights for one output sample.
struct Window {
    start: usize,
    weights: Vec<i32>,
}

fn windows(from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0); // antialiasing: a smaller picture's filter is as much wider
    let support = 2.0 * stretch;
    let window = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        let start = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weight = |sample: usize| bicubic((sample as f64 - center + 0.5) * (1.0 / stretch));
        let weights: Vec<f64> = (start..end).map(weight).collect();
        let mut sum = 0.0;
        weights.iter().for_each(|weight| sum += weight);
        let fixed = |weight: &f64| {
            let share = weight / sum * f64::from(1u32 << BITS);
            (share + if share < 0.0 { -0.5 } else { 0.5 }) as i32
        };
        Window { start, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(window).collect()
}

#[inline(always)]
fn to_byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (BITS - 1);

/// Resamples RGB bytes as Pillow 1 to 12 does: along rows and then along columns, but for tall ones, with bytes in
/// between.
pub fn resample(rgb: Vec<u8>, (width, height): (usize, usize), (to_width, to_height): (usize, usize)) -> Vec<u8> {
    if height > 100 * width && to_height < height {
        return resample_rows(resample_columns(rgb, width, height, to_height), width, to_width);
    }
    resample_columns(resample_rows(rgb, width, to_width), to_width, height, to_height)
}

fn resample_columns(rows: Vec<u8>, width: usize, height: usize, to_height: usize) -> Vec<u8> {
    if height == to_height {
        return rows;
    }
    let line = width * 3;
    let mut out = vec![0; line * to_height];
    let mut sums = vec![0; line];
    for (window, to) in windows(height, to_height).iter().zip(out.chunks_exact_mut(line)) {
        meter::look();
        add_lines(window, &rows[window.start * line..], &mut sums, to);
    }
    out
}

fn resample_rows(rgb: Vec<u8>, width: usize, to_width: usize) -> Vec<u8> {
    if width == to_width {
        return rgb;
    }
    let windows = windows(width, to_width);
    let mut out = vec![0; rgb.len() / width * to_width];
    let mut line = vec![0; width * 3 + 1]; // a pixel is read with the byte behind it
    for (from, to) in rgb.chunks_exact(width * 3).zip(out.chunks_exact_mut(to_width * 3)) {
        meter::look();
        line[..width * 3].copy_from_slice(from);
        add_pixels(&windows, &line, to);
    }
    out
}

// Sums of integers are the same in any order, so any registers will do.

fn add_lines(window: &Window, rows: &[u8], sums: &mut [i32], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has these instructions.
        return unsafe { x86::add_lines(window, rows, sums, to) };
    }
    add_lines_in_any(window, rows, sums, to);
}

#[inline(always)]
fn add_lines_in_any(window: &Window, rows: &[u8], sums: &mut [i32], to: &mut [u8]) {
    sums.fill(HALF);
    for (weight, from) in window.weights.iter().zip(rows.chunks_exact(to.len())) {
        for index in 0..sums.len().min(from.len()) {
            sums[index] += weight * i32::from(from[index]);
        }
    }
    for index in 0..to.len().min(sums.len()) {
        to[index] = to_byte(sums[index]);
    }
}

fn add_pixels(windows: &[Window], line: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has these instructions.
        return unsafe { x86::add_pixels(windows, line, to) };
    }
    for (window, pixel) in windows.iter().zip(to.chunks_exact_mut(3)) {
        let mut sums = [HALF; 3];
        for (weight, from) in window.weights.iter().zip(line[window.start * 3..].chunks_exact(3)) {
            for channel in 0..3 {
                sums[channel] += weight * i32::from(from[channel]);
            }
        }
        pixel.copy_from_slice(&sums.map(to_byte));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{add_lines_in_any, Window, BITS, HALF};

    #[target_feature(enable = "avx2")]
    pub fn add_lines(window: &Window, rows: &[u8], sums: &mut [i32], to: &mut [u8]) {
        add_lines_in_any(window, rows, sums, to);
    }

    /// A pixel's channels, and the byte behind them, are summed side by side.
    #[target_feature(enable = "avx2")]
    pub fn add_pixels(windows: &[Window], line: &[u8], to: &mut [u8]) {
        for (index, window) in windows.iter().enumerate() {
            let mut sums = _mm_set1_epi32(HALF);
            let mut from = &line[window.start * 3..];
            for &weight in &window.weights {
                let Some((four, _)) = from.split_first_chunk() else { break };
                let pixel = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(*four)));
                sums = _mm_add_epi32(sums, _mm_mullo_epi32(pixel, _mm_set1_epi32(weight)));
                from = &from[3..];
            }
            let words = _mm_packs_epi32(_mm_srai_epi32::<{ BITS as i32 }>(sums), sums);
            let bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words)).to_le_bytes();
            to[index * 3..index * 3 + 3].copy_from_slice(&bytes[..3]);
        }
    }
}
