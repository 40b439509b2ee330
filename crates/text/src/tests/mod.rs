mod labels;
mod layouts;
mod mutations;
mod tokenizer;
