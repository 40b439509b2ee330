mod labels;
mod layouts;
mod mutations;
