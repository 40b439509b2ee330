//! Texts and images in one space.

use crate::classifier::Label;
use crate::source::{Progress, Reference};
use crate::{Embeddings, Error, LoadOptions, Result};

/// A picture in memory.
#[derive(Clone, Debug)]
pub struct Image(());

impl Image {
    /// Reads a picture of any usual format, told by its content.
    pub fn decode(_: &[u8]) -> Result<Image> {
        Err(Error::Input("not built yet".into()))
    }
}

/// A model of two towers, loaded and proven.
pub struct Clip {
    session: crate::Embedder,
}

crate::session::loaded!(Clip, self => &self.session);

impl Clip {
    /// Finds the files, plans, loads and proves the model.
    pub fn load(_: &Reference, _: &LoadOptions, _: &dyn Progress) -> Result<Clip> {
        Err(Error::Input("not built yet".into()))
    }

    /// Vectors of texts, of length one.
    pub fn texts<T: AsRef<str> + Sync>(&self, _: &[T]) -> Result<Embeddings> {
        Err(Error::Input("not built yet".into()))
    }

    /// Vectors of images, of length one.
    pub fn images(&self, _: &[Image]) -> Result<Embeddings> {
        Err(Error::Input("not built yet".into()))
    }

    /// How well each text describes each image, as the model scores it: the texts of an image in their order.
    pub fn classify<T: AsRef<str> + Sync>(&self, _: &[Image], _: &[T]) -> Result<Vec<Vec<Label>>> {
        Err(Error::Input("not built yet".into()))
    }
}
