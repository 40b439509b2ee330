//! Arguments from Ruby.

use crate::error::{argument, wrong_type};
use crate::fork;
use magnus::{Error, RArray, RString, Ruby, TryConvert, Value};
use sconce_engine::hub::Reference;
use sconce_engine::{Device, DeviceChoice, LoadOptions};
use std::ops::Deref;

/// A text, in UTF-8.
pub(crate) fn text(ruby: &Ruby, value: Value) -> Result<String, Error> {
    let string = RString::from_value(value).ok_or_else(|| wrong_type(ruby, "a String", value))?;
    string.to_string().map_err(|_| argument(ruby, "a text is not valid UTF-8"))
}

/// An argument that is a text, in UTF-8.
pub(crate) struct Text(pub(crate) String);

impl TryConvert for Text {
    fn try_convert(value: Value) -> Result<Text, Error> {
        text(&Ruby::get_with(value), value).map(Text)
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A list of texts.
pub(crate) fn texts(ruby: &Ruby, list: RArray) -> Result<Vec<String>, Error> {
    let mut all = Vec::with_capacity(list.len());
    for i in 0..list.len() {
        all.push(text(ruby, list.entry(i as isize)?)?);
    }
    Ok(all)
}

/// A list of numbers.
pub(crate) fn numbers<T: TryConvert>(list: RArray) -> Result<Vec<T>, Error> {
    (0..list.len()).map(|i| list.entry(i as isize)).collect()
}

/// JSON that the Ruby code generated.
pub(crate) fn json(ruby: &Ruby, text: &str) -> Result<serde_json::Value, Error> {
    serde_json::from_str(text).map_err(|e| argument(ruby, format!("not valid JSON: {e}")))
}

/// A device by name.
pub(crate) fn device(ruby: &Ruby, name: &str) -> Result<Device, Error> {
    name.parse().map_err(|e| argument(ruby, e))
}

/// A model's reference, and options to load it with on a device.
pub(crate) fn model(ruby: &Ruby, name: &str, on: &str) -> Result<(Reference, LoadOptions), Error> {
    let reference = name.parse().map_err(|e| crate::error::failure(ruby, e))?;
    let options = LoadOptions::from_env().map_err(|e| crate::error::failure(ruby, e))?;
    let device = device(ruby, on)?;
    fork::check_device(ruby, device)?;
    Ok((reference, options.with_device(DeviceChoice::Only(device))))
}
