//! The image processor that a model's files describe: resize, centre crop, rescale, normalize, with
//! the numbers of transformers' PIL image processors.

use super::Image;
use super::resize::{Filter, resize_window};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// The largest configuration file; far above any real one.
const MOST_CONFIG_BYTES: u64 = 1 << 20;
/// The largest side of an image input; far above any model's.
const MOST_SIDE: u64 = 2048;

const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

/// Converts images to model inputs.
#[derive(Clone, Debug)]
pub(crate) struct Processor {
    resize: Option<(Size, Filter)>,
    side: (usize, usize), // height, width
    /// The value of every byte in every channel.
    values: Box<[[f32; 256]; 3]>,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    /// The short side becomes this; the long one keeps the proportion.
    Shortest(usize),
    Exact {
        height: usize,
        width: usize,
    },
}

/// The supported processors, with their defaults and steps.
#[derive(Clone, Copy)]
enum ProcessorKind {
    Clip,
    Siglip,
}

impl Processor {
    /// Reads the image processor in a model's folder: `image_processor` in `processor_config.json`
    /// if a newer file has it, else `preprocessor_config.json`. Unknown or unsupported options are
    /// refused.
    pub(crate) fn read(dir: &Path) -> Result<Processor, String> {
        const NESTED: &str = "processor_config.json";
        const PLAIN: &str = "preprocessor_config.json";
        let nested = json(&dir.join(NESTED))?.and_then(|mut file| file.remove("image_processor"));
        let (name, options) = match nested {
            Some(Value::Object(options)) => (NESTED, options),
            Some(other) => return Err(format!("{NESTED}: image_processor is {other}, not an object")),
            None => (
                PLAIN,
                json(&dir.join(PLAIN))?
                    .ok_or_else(|| format!("no {PLAIN}, which describes how images are prepared"))?,
            ),
        };
        Processor::new(Options(options)).map_err(|why| format!("{name}: {why}"))
    }

    /// Height and width of the model's input.
    pub(crate) fn side(&self) -> (usize, usize) {
        self.side
    }

    /// The values of an image, channels first: `[3, height, width]`.
    pub(crate) fn pixels(&self, image: &Image) -> Vec<f32> {
        let (height, width) = self.side;
        let scaled = match self.resize {
            None => (image.height, image.width),
            Some((Size::Exact { height, width }, _)) => (height, width),
            Some((Size::Shortest(size), _)) => shortest(size, image.height, image.width),
        };
        // Zeros before normalization, as the reference pads.
        let mut out: Vec<f32> = self.values.iter().flat_map(|v| std::iter::repeat_n(v[0], height * width)).collect();
        let (rows, top) = overlap(scaled.0, height);
        let (columns, left) = overlap(scaled.1, width);
        let filter = self.resize.map_or(Filter::Nearest, |(_, filter)| filter);
        let window = resize_window(image, (scaled.1, scaled.0), columns.clone(), rows.clone(), filter);
        for (plane, (values, channel)) in out.chunks_exact_mut(height * width).zip(self.values.iter().zip(0..)) {
            for (row, pixels) in plane.chunks_exact_mut(width).skip(top).zip(window.rgb.chunks_exact(window.width * 3))
            {
                let bytes = pixels.iter().skip(channel).step_by(3);
                row[left..left + columns.len()].iter_mut().zip(bytes).for_each(|(v, &b)| *v = values[usize::from(b)]);
            }
        }
        out
    }

    fn new(mut options: Options) -> Result<Processor, String> {
        let kind = options.kind()?;
        let clip = matches!(kind, ProcessorKind::Clip);
        let square = options.flag("default_to_square", false)?;
        let size = options.size("size", square)?;
        let crop_size = options.size("crop_size", true)?;
        let filter = options.filter()?;
        let resize = options.flag("do_resize", true)?.then(|| (size.unwrap_or(kind.size()), filter));
        let crop = match (options.flag("do_center_crop", clip)?, crop_size) {
            (false, _) => None,
            (true, Some(Size::Exact { height, width })) => Some((height, width)),
            (true, None) if clip => Some((224, 224)),
            (true, _) => return Err("do_center_crop is on, but crop_size has no height and width".into()),
        };
        let side = match (crop, resize) {
            (Some(crop), _) => crop,
            (None, Some((Size::Exact { height, width }, _))) => (height, width),
            (None, _) => {
                return Err("neither size nor crop_size fixes both sides; a model needs images of one size".into());
            }
        };
        let values = options.values(kind)?;
        options.finish()?;
        Ok(Processor { resize, side, values })
    }
}

impl ProcessorKind {
    fn size(self) -> Size {
        match self {
            ProcessorKind::Clip => Size::Shortest(224),
            ProcessorKind::Siglip => Size::Exact { height: 224, width: 224 },
        }
    }

    fn mean_and_std(self) -> ([f64; 3], [f64; 3]) {
        match self {
            ProcessorKind::Clip => (CLIP_MEAN, CLIP_STD),
            ProcessorKind::Siglip => ([0.5; 3], [0.5; 3]),
        }
    }
}

/// The options of a file, taken one by one, so that what is left is unknown. `null` means the
/// default.
struct Options(Map<String, Value>);

impl Options {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|v| !v.is_null())
    }

    fn kind(&mut self) -> Result<ProcessorKind, String> {
        let names = ["image_processor_type", "feature_extractor_type", "processor_class"].map(|n| self.take(n));
        let Some(name) = names.into_iter().flatten().next() else {
            return Err(
                "it has no image_processor_type; CLIPImageProcessor and SiglipImageProcessor are supported".into()
            );
        };
        match name.as_str().unwrap_or_default() {
            "CLIPImageProcessor"
            | "CLIPImageProcessorFast"
            | "CLIPImageProcessorPil"
            | "CLIPFeatureExtractor"
            | "CLIPProcessor" => Ok(ProcessorKind::Clip),
            "SiglipImageProcessor" | "SiglipImageProcessorFast" | "SiglipImageProcessorPil" | "SiglipProcessor" => {
                Ok(ProcessorKind::Siglip)
            }
            _ => {
                Err(format!("the image processor is {name}; CLIPImageProcessor and SiglipImageProcessor are supported"))
            }
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> Result<bool, String> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(format!("{name} is {other}, not true or false")),
        }
    }

    /// A number alone is the short side, or both sides if `square`.
    fn size(&mut self, name: &str, square: bool) -> Result<Option<Size>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong =
            || format!("{name} is {value}; it must be a short side, or height and width, from 1 to {MOST_SIDE}");
        let side = |v: &Value| v.as_u64().filter(|n| (1..=MOST_SIDE).contains(n)).map(|n| n as usize).ok_or_else(wrong);
        let exact = |h, w| Ok(Size::Exact { height: side(h)?, width: side(w)? });
        let size = match &value {
            Value::Number(_) if square => exact(&value, &value),
            Value::Number(_) => side(&value).map(Size::Shortest),
            Value::Array(both) if both.len() == 2 => exact(&both[0], &both[1]),
            Value::Object(sides) => {
                let given: Vec<_> = sides.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.as_str(), v)).collect();
                match given[..] {
                    [("shortest_edge", n)] => side(n).map(Size::Shortest),
                    [("height", h), ("width", w)] | [("width", w), ("height", h)] => exact(h, w),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        };
        size.map(Some)
    }

    fn filter(&mut self) -> Result<Filter, String> {
        let Some(value) = self.take("resample") else { return Ok(Filter::Bicubic) };
        value
            .as_u64()
            .and_then(Filter::from_number)
            .ok_or_else(|| format!("resample is {value}, not one of Pillow's 0 to 5"))
    }

    fn number(&mut self, name: &str, default: f64) -> Result<f64, String> {
        self.take(name).map_or(Ok(default), |v| v.as_f64().ok_or_else(|| format!("{name} is {v}, not a number")))
    }

    /// One number for all channels, or one per channel.
    fn channels(&mut self, name: &str, default: [f64; 3]) -> Result<[f64; 3], String> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let three = match &value {
            Value::Array(values) => values.iter().map(Value::as_f64).collect::<Option<Vec<_>>>(),
            one => one.as_f64().map(|v| vec![v; 3]),
        };
        three.and_then(|v| v.try_into().ok()).ok_or_else(|| format!("{name} is {value}, not three numbers"))
    }

    /// Rescaled in f64 and rounded to f32, then normalized in f32, as numpy does in the reference.
    fn values(&mut self, kind: ProcessorKind) -> Result<Box<[[f32; 256]; 3]>, String> {
        let factor = self.number("rescale_factor", 1.0 / 255.0)?;
        let scale = self.flag("do_rescale", true)?.then_some(factor);
        let (mean, std) = kind.mean_and_std();
        let (mean, std) = (self.channels("image_mean", mean)?, self.channels("image_std", std)?);
        let normalise = self.flag("do_normalize", true)?;
        let mut values = Box::new([[0.0; 256]; 3]);
        for ((table, mean), std) in values.iter_mut().zip(mean).zip(std) {
            for (byte, value) in table.iter_mut().enumerate() {
                let scaled = scale.map_or(byte as f32, |factor| (byte as f64 * factor) as f32);
                *value = if normalise { (scaled - mean as f32) / std as f32 } else { scaled };
            }
            if !table.iter().all(|v| v.is_finite()) {
                return Err(format!("with mean {mean}, deviation {std} and factor {factor} the values are not finite"));
            }
        }
        Ok(values)
    }

    /// Refuses remaining options, unless they cannot change a value.
    fn finish(mut self) -> Result<(), String> {
        for name in ["do_pad", "use_square_size"] {
            if self.flag(name, false)? {
                return Err(format!("{name} is on, which is not supported"));
            }
        }
        if let Some(format) = self.take("data_format").filter(|f| f != "channels_first") {
            return Err(format!("data_format is {format}; only channels_first is supported"));
        }
        // Options about array types or devices; and every decoded image is RGB already.
        let inert = [
            "do_convert_rgb",
            "input_data_format",
            "return_tensors",
            "device",
            "disable_grouping",
            "pad_size",
            "image_seq_length",
            "_valid_processor_keys",
        ];
        match self.0.iter().find(|(name, value)| !value.is_null() && !inert.contains(&name.as_str())) {
            Some((name, value)) => Err(format!("{name} is {value}, an unknown option, which may change the values")),
            None => Ok(()),
        }
    }
}

/// A JSON object, if the file exists.
fn json(path: &Path) -> Result<Option<Map<String, Value>>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{name}: {e}")),
    };
    let mut text = Vec::new();
    file.take(MOST_CONFIG_BYTES + 1).read_to_end(&mut text).map_err(|e| format!("{name}: {e}"))?;
    if text.len() as u64 > MOST_CONFIG_BYTES {
        return Err(format!("{name}: the file is larger than {MOST_CONFIG_BYTES} bytes"));
    }
    serde_json::from_slice(&text).map(Some).map_err(|e| format!("{name}: {e}"))
}

/// The height and width whose short side is `size`; the long one is rounded down.
fn shortest(size: usize, height: usize, width: usize) -> (usize, usize) {
    let long = |long: usize, short: usize| ((size * long) as f64 / short as f64) as usize;
    if width <= height { (long(height, width), size) } else { (size, long(width, height)) }
}

/// A centre crop of `want` of `have` pixels: the range of pixels to take, and where they begin in
/// the result if there are too few.
fn overlap(have: usize, want: usize) -> (Range<usize>, usize) {
    // Rounded towards negative infinity: a crop loses the odd pixel at the end, a padding gains it
    // in front.
    if have >= want {
        let first = (have - want) / 2;
        (first..first + want, 0)
    } else {
        (0..have, (want - have).div_ceil(2))
    }
}
