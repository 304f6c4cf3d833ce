//! Pictures of prompts: PNG, JPEG, WebP, and the first frame of a GIF. A file's header is read first: it says what
//! decoding would take, and a file that lies about it runs into the budget of its own decoding.

use std::io::Cursor;
use std::time::Duration;

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::abi::{caught, Cancel, Failure};
use crate::meter::{self, Budget, Stopped};
use crate::resample::{resample, target, Rules};

const MAX_FILE: usize = 20 << 20;
const MAX_SIDE: u32 = 16_384;
const MAX_PIXELS: u64 = 64_000_000;
const MAX_RATIO: u32 = 200;
/// Memory of decoders beside what goes by the pixels. A progressive JPEG keeps up to four components of 16 bits.
const FIXED_BYTES: usize = 32 << 20;
const BYTES_PER_PIXEL: usize = 12;

/// The size of a picture as the model sees it, and the most memory that reading it takes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Size {
    pub width: u32,
    pub height: u32,
    pub memory: u64,
}

/// Samples of 8 bits.
struct Samples {
    bytes: Vec<u8>,
    channels: usize, // grey, grey and alpha, RGB, RGB and alpha
}

/// A file whose header was read.
struct Opened<'a> {
    width: u32,
    height: u32,
    turn: u8, // EXIF's orientation, 1 to 8
    decode: Box<dyn FnOnce() -> Result<Samples, String> + 'a>,
}

impl Opened<'_> {
    /// The size after the turn.
    fn size(&self) -> (u32, u32) {
        if self.turn > 4 {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

type Open = for<'a> fn(&'a [u8]) -> Result<Opened<'a>, String>;

fn open_png(file: &[u8]) -> Result<Opened<'_>, String> {
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes: FIXED_BYTES });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(text)?;
    let info = reader.info();
    let (width, height) = info.size();
    let turn = info.exif_metadata.as_ref().map_or(1, |exif| turn_of(exif));
    let decode = move || {
        let channels = reader.output_color_type().0.samples();
        let mut bytes = vec![0; reader.output_buffer_size().ok_or("it is too large")?];
        reader.next_frame(&mut bytes).map_err(text)?;
        Ok(Samples { bytes, channels })
    };
    Ok(Opened { width, height, turn, decode: Box::new(decode) })
}

fn open_jpeg(file: &[u8]) -> Result<Opened<'_>, String> {
    let side = MAX_SIDE as usize;
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(side * 4).set_max_height(side * 4);
    let mut header = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(file), options);
    header.decode_headers().map_err(text)?;
    let (width, height) = header.dimensions().ok_or("it has no size")?;
    let grey = header.input_colorspace() == Some(ColorSpace::Luma);
    let turn = header.exif().map_or(1, |exif| turn_of(exif));
    let decode = move || {
        let (space, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
        let options = options.jpeg_set_out_colorspace(space);
        let bytes = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(file), options).decode().map_err(text)?;
        Ok(Samples { bytes, channels })
    };
    Ok(Opened { width: width as u32, height: height as u32, turn, decode: Box::new(decode) })
}

fn open_webp(file: &[u8]) -> Result<Opened<'_>, String> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(file)).map_err(text)?;
    let (width, height) = decoder.dimensions();
    let turn = decoder.exif_metadata().map_err(text)?.map_or(1, |exif| turn_of(&exif));
    let decode = move || {
        let mut bytes = vec![0; decoder.output_buffer_size().ok_or("it is too large")?];
        decoder.read_image(&mut bytes).map_err(text)?;
        Ok(Samples { bytes, channels: if decoder.has_alpha() { 4 } else { 3 } })
    };
    Ok(Opened { width, height, turn, decode: Box::new(decode) })
}

fn open_gif(file: &[u8]) -> Result<Opened<'_>, String> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    options.set_memory_limit(gif::MemoryLimit::Unlimited); // the budget's
    let mut decoder = options.read_info(Cursor::new(file)).map_err(text)?;
    let (width, height) = (decoder.width() as usize, decoder.height() as usize);
    let decode = move || {
        let frame = decoder.read_next_frame().map_err(text)?.ok_or("it has no frame")?;
        let (left, top) = (usize::from(frame.left), usize::from(frame.top));
        let mut bytes = vec![0; width * height * 4];
        let inside = usize::from(frame.width).min(width.saturating_sub(left)) * 4;
        let lines = frame.buffer.chunks_exact((usize::from(frame.width) * 4).max(1));
        for (line, to) in lines.zip(bytes.chunks_exact_mut(width * 4).skip(top)) {
            let begin = left.min(width) * 4;
            to[begin..begin + inside].copy_from_slice(&line[..inside]);
        }
        Ok(Samples { bytes, channels: 4 })
    };
    Ok(Opened { width: width as u32, height: height as u32, turn: 1, decode: Box::new(decode) })
}

/// EXIF's orientation; 1, which turns nothing, where there is none.
fn turn_of(exif: &[u8]) -> u8 {
    const ORIENTATION: usize = 0x0112;
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let big = exif.starts_with(b"MM");
    let number = |at: usize, size: usize| {
        let bytes = exif.get(at..at.checked_add(size)?)?.iter();
        let add = |sum: usize, &byte: &u8| (sum << 8) + usize::from(byte);
        Some(if big { bytes.fold(0, add) } else { bytes.rev().fold(0, add) })
    };
    let find = || {
        let entries = number(4, 4)?;
        let first = entries.checked_add(2)?;
        let entry = (0..number(entries, 2)?).map(|index| first + index * 12);
        let mut found = entry.take_while(|at| at + 12 <= exif.len()).filter(|at| number(*at, 2) == Some(ORIENTATION));
        number(found.next()? + 8, 2)
    };
    match find() {
        Some(turn @ 2..=8) => turn as u8,
        _ => 1,
    }
}

#[inline(always)]
fn over_white(value: u8, alpha: u8) -> u8 {
    let sum = u32::from(value) * u32::from(alpha) + 255 * (255 - u32::from(alpha)) + 128;
    ((sum + (sum >> 8)) >> 8) as u8
}

/// RGB on a white ground, rounded as Pillow does.
fn to_rgb(samples: Samples) -> Vec<u8> {
    let Samples { mut bytes, channels } = samples;
    let pixels = bytes.len() / channels;
    match channels {
        1 => return bytes.iter().flat_map(|&grey| [grey; 3]).collect(),
        2 => return bytes.chunks_exact(2).flat_map(|pixel| [over_white(pixel[0], pixel[1]); 3]).collect(),
        4 => {
            // Some pixels are copied out of the way, for the result takes the place of the samples.
            let mut some = [0; 4096];
            let mut first = 0;
            while first < pixels {
                let count = (pixels - first).min(some.len() / 4);
                some[..count * 4].copy_from_slice(&bytes[first * 4..][..count * 4]);
                let to = &mut bytes[first * 3..][..count * 3];
                for index in 0..count {
                    let alpha = some[index * 4 + 3];
                    for channel in 0..3 {
                        to[index * 3 + channel] = over_white(some[index * 4 + channel], alpha);
                    }
                }
                first += count;
            }
            bytes.truncate(pixels * 3);
        }
        _ => {}
    }
    bytes
}

/// Turns and flips as EXIF's orientation says.
fn turned(rgb: Vec<u8>, width: usize, height: usize, turn: u8) -> Vec<u8> {
    let (last_x, last_y) = (width - 1, height - 1);
    let source = |x: usize, y: usize| match turn {
        2 => (last_x - x, y),
        3 => (last_x - x, last_y - y),
        4 => (x, last_y - y),
        5 => (y, x),
        6 => (y, last_y - x),
        7 => (last_x - y, last_y - x),
        8 => (last_x - y, x),
        _ => (x, y),
    };
    if turn == 1 {
        return rgb;
    }
    let (to_width, to_height) = if turn > 4 { (height, width) } else { (width, height) };
    let mut out = Vec::with_capacity(rgb.len());
    for y in 0..to_height {
        meter::look();
        for x in 0..to_width {
            let (from_x, from_y) = source(x, y);
            let at = (from_y * width + from_x) * 3;
            out.extend_from_slice(&rgb[at..at + 3]);
        }
    }
    out
}

fn format_of(file: &[u8]) -> Option<(&'static str, Open)> {
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some(("PNG", open_png))
    } else if file.starts_with(b"\xff\xd8\xff") {
        Some(("JPEG", open_jpeg))
    } else if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP") {
        Some(("WebP", open_webp))
    } else if file.starts_with(b"GIF87a") || file.starts_with(b"GIF89a") {
        Some(("GIF", open_gif))
    } else {
        None
    }
}

/// Runs a library's work on a file. Its panics are the file's fault.
fn within<T>(
    format: &str,
    memory: usize,
    pixels: u64,
    cancel: Cancel,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, Failure> {
    let cpu = Duration::from_secs(2) + Duration::from_nanos(500) * pixels as u32;
    let budget = Budget { bytes: memory, pieces: isize::MAX as usize, total_bytes: usize::MAX, cpu };
    let broken = |why: String| Failure::invalid(format!("the picture cannot be read as {format}: {why}"));
    match caught(|| meter::within(budget, cancel, work), broken)? {
        Ok(outcome) => outcome.map_err(broken),
        Err(Stopped::Cancelled(failure)) => Err(failure),
        Err(_) => Err(broken("decoding it takes more memory or time than a picture of its size does".into())),
    }
}

fn open(file: &[u8]) -> Result<(&'static str, Opened<'_>), Failure> {
    if file.len() > MAX_FILE {
        return Err(Failure::invalid(format!(
            "the picture has {} bytes, and at most {MAX_FILE} are taken: send a smaller file",
            file.len()
        )));
    }
    let (format, open) = format_of(file)
        .ok_or_else(|| Failure::invalid("the picture is no file of PNG, JPEG, WebP or GIF: convert it to one"))?;
    let opened = within(format, FIXED_BYTES + file.len(), 0, Cancel::NEVER, || open(file))?;
    let (width, height) = (opened.width, opened.height);
    let refuse = |why: String| {
        Err(Failure::invalid(format!("the picture has {width} x {height} pixels, and {why}: send another size")))
    };
    if width == 0 || height == 0 {
        return refuse("none to see".into());
    }
    if width.max(height) > MAX_SIDE {
        return refuse(format!("a side may have {MAX_SIDE}"));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return refuse(format!("at most {} million are taken", MAX_PIXELS / 1_000_000));
    }
    if width.max(height) > width.min(height) * MAX_RATIO {
        return refuse(format!("one side may be at most {MAX_RATIO} times the other"));
    }
    Ok((format, opened))
}

fn size_of(opened: &Opened, file: usize, rules: &Rules) -> Result<Size, Failure> {
    let range = u64::from(rules.side).pow(2)..=MAX_PIXELS;
    if rules.side == 0 || !range.contains(&rules.max_pixels) || rules.min_pixels > rules.max_pixels {
        return Err(Failure::precondition("the model's files give no sizes of pictures that could be made"));
    }
    let (from_width, from_height) = opened.size();
    let (width, height) = target(from_width, from_height, rules);
    let pixels = (opened.width as usize * opened.height as usize) * BYTES_PER_PIXEL;
    // The rows' resampling comes between the picture and its result.
    let made = 3 * width as usize * (height as usize + from_height as usize);
    Ok(Size { width, height, memory: (FIXED_BYTES + 2 * file + pixels + made) as u64 })
}

/// Reads the header alone.
pub fn measure(file: &[u8], rules: &Rules) -> Result<Size, Failure> {
    let (_, opened) = open(file)?;
    size_of(&opened, file.len(), rules)
}

/// The picture as the model sees it, in rows of RGB.
pub fn read(file: &[u8], rules: &Rules, cancel: Cancel) -> Result<(Size, Vec<u8>), Failure> {
    let (format, opened) = open(file)?;
    let size = size_of(&opened, file.len(), rules)?;
    let pixels = u64::from(opened.width) * u64::from(opened.height);
    let rgb = within(format, size.memory as usize, pixels, cancel, || {
        let (width, height, turn) = (opened.width as usize, opened.height as usize, opened.turn);
        let (from_width, from_height) = opened.size();
        let samples = (opened.decode)()?;
        if samples.bytes.len() != width * height * samples.channels {
            return Err("it is cut short".into());
        }
        let rgb = turned(to_rgb(samples), width, height, turn);
        let from = (from_width as usize, from_height as usize);
        Ok(resample(rgb, from, (size.width as usize, size.height as usize)))
    })?;
    Ok((size, rgb))
}
