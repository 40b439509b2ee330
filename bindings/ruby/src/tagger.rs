//! `Sconce::Native::Tagger`.

use crate::convert::{Text, model, texts};
use crate::guard::{function, method};
use crate::gvl;
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{Loaded, RequestContext, Tagger};

#[magnus::wrap(class = "Sconce::Native::Tagger", free_immediately)]
struct NativeTagger(Handle<Tagger>);

fn load(ruby: &Ruby, name: Text, device: Text) -> Result<NativeTagger, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let load = move || Tagger::load(&reference, &options, &());
    gvl::run(ruby, &RequestContext::default(), load).map(|model| NativeTagger(Handle::new(model)))
}

/// For each text, `[id, start, end, special, probabilities]` of each token.
fn scores(ruby: &Ruby, this: &NativeTagger, list: RArray) -> Result<RArray, Error> {
    let (context, texts) = (RequestContext::default(), texts(ruby, list)?);
    let model = this.0.get(ruby)?.with_context(&context);
    let outputs = gvl::run(ruby, &context, move || model.scores(&texts))?;
    let all = ruby.ary_new_capa(outputs.results.len());
    for tokens in outputs.results {
        let row = ruby.ary_new_capa(tokens.len());
        for t in tokens {
            row.push((t.id, t.start, t.end, t.special, t.scores))?;
        }
        all.push(row)?;
    }
    Ok(all)
}

fn labels(ruby: &Ruby, this: &NativeTagger) -> Result<Vec<String>, Error> {
    Ok(this.0.get(ruby)?.labels().to_vec())
}

fn close(ruby: &Ruby, this: &NativeTagger) -> Result<(), Error> {
    this.0.close(ruby)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Tagger", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 2))?;
    class.define_method("scores", method!(scores, 1))?;
    class.define_method("labels", method!(labels, 0))?;
    class.define_method("close", method!(close, 0))
}
