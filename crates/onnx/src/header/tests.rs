//! Valid, hostile and damaged files.

use super::*;
use sconce_testkit::{golden, mutations};

fn graph(name: &str) -> Vec<u8> {
    std::fs::read(golden("onnx").join(format!("{name}.onnx"))).expect(name)
}

/// A field with bytes.
fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field with a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A file with this graph.
fn model(graph: &[u8]) -> Vec<u8> {
    [number(1, 8), bytes(7, graph)].concat()
}

/// A graph with a weight of f32.
fn weight(dims: &[i64], raw: usize) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim as u64)).collect();
    bytes(5, &[dims, number(2, 1), bytes(8, b"w"), bytes(9, &vec![0; raw])].concat())
}

fn refused(file: &[u8]) -> String {
    parse(file).expect_err("a refusal")
}

#[test]
fn the_head_names_inputs_outputs_operators_and_other_files() {
    let header = parse(&graph("task-tag")).expect("a head");
    let names: Vec<&str> = header.inputs.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["input_ids", "attention_mask", "token_type_ids"]);
    assert_eq!((header.inputs[0].element, &header.inputs[0].dims[..]), (7, &[None, None][..]));
    assert_eq!(header.outputs.len(), 1);
    // The labels of the golden.
    assert_eq!((header.outputs[0].name.as_str(), header.outputs[0].dims.len()), ("logits", 3));
    assert!(header.operators["MatMul"] > 8 && header.operators["Softmax"] == 2, "{:?}", header.operators);
    assert!(!header.is_dynamically_quantized());
    assert!(header.external.iter().all(|part| part.location == "weights.bin" && part.length > 0));
    let bytes: u64 = header.external.iter().map(|part| part.length).sum();
    assert!(header.external.len() > 30 && bytes > 50_000, "{} {bytes}", header.external.len());
}

#[test]
fn dynamic_quantization_is_recognized() {
    let node = |operator: &str| parse(&model(&bytes(1, &bytes(4, operator.as_bytes())))).expect("a head");
    assert!(node("DynamicQuantizeLinear").is_dynamically_quantized());
    assert!(!node("QLinearMatMul").is_dynamically_quantized());
}

#[test]
fn sizes_that_contradict_shapes_are_refused() {
    assert!(parse(&model(&weight(&[2, 3], 24))).is_ok());
    assert!(refused(&model(&weight(&[2, 3], 20))).contains("20 bytes instead of 24"));
    for dims in [&[i64::MAX, 2][..], &[-1], &[1 << 40, 1 << 40], &[i64::MAX, i64::MAX]] {
        assert!(refused(&model(&weight(dims, 0))).contains("absurd"), "{dims:?}");
    }
    assert!(refused(&model(&weight(&[1; 65], 4))).contains("more than 64"));
    let external = |length: &str| {
        let entry =
            |key: &str, value: &str| bytes(13, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat());
        let content =
            [number(1, 5), number(2, 1), entry("location", "data"), entry("length", length), number(14, 1)].concat();
        model(&bytes(5, &content))
    };
    assert_eq!(parse(&external("20")).expect("a head").external[0].length, 20);
    assert!(refused(&external("16")).contains("16 bytes instead of 20"));
    assert!(refused(&external("-4")).contains("not a number"));
    assert!(refused(&model(&bytes(5, &[number(2, 1), number(14, 1)].concat()))).contains("does not name"));
    assert!(refused(&model(&bytes(5, &number(2, 99)))).contains("element type 99"));
}

#[test]
fn nodes_that_create_absurd_tensors_are_refused() {
    let create = |dims: &[i64]| {
        let raw: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let shape = [number(1, dims.len() as u64), number(2, 7), bytes(8, b"shape"), bytes(9, &raw)].concat();
        model(&[bytes(5, &shape), bytes(1, &[bytes(1, b"shape"), bytes(4, b"ConstantOfShape")].concat())].concat())
    };
    assert!(parse(&create(&[512, 512])).is_ok());
    for dims in [&[1 << 20, 1 << 20][..], &[-1], &[i64::MAX, i64::MAX]] {
        assert!(refused(&create(dims)).contains("absurd"), "{dims:?}");
    }
}

#[test]
fn shapes_of_constants_are_checked_too() {
    let create = bytes(1, &[bytes(1, b"shape"), bytes(4, b"ConstantOfShape")].concat());
    let constant =
        |attribute: &[u8]| bytes(1, &[bytes(2, b"shape"), bytes(4, b"Constant"), bytes(5, attribute)].concat());
    let tensor = |dims: &[i64]| {
        let raw: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        bytes(5, &[number(1, dims.len() as u64), number(2, 7), bytes(9, &raw)].concat())
    };
    let list = |dims: &[i64]| -> Vec<u8> { dims.iter().flat_map(|dim| number(8, *dim as u64)).collect() };
    let (small, absurd) = ([8, 128], [1 << 20, 1 << 20]);
    for dims in [tensor(&small), list(&small), list(&[1; 300])] {
        assert!(parse(&model(&[constant(&dims), create.clone()].concat())).is_ok());
    }
    for dims in [tensor(&absurd), list(&absurd)] {
        // The order of nodes does not matter.
        assert!(refused(&model(&[create.clone(), constant(&dims)].concat())).contains("absurd"));
    }
}

#[test]
fn nesting_and_other_things_are_refused() {
    // A graph in an attribute of a node of a graph, and so on.
    let mut inner = Vec::new();
    for _ in 0..DEEPEST {
        inner = bytes(1, &bytes(5, &bytes(6, &inner)));
    }
    assert!(parse(&model(&inner)).is_ok());
    let deeper = bytes(1, &bytes(5, &bytes(6, &inner)));
    assert!(refused(&model(&deeper)).contains("nested"));

    assert!(refused(b"").contains("no version"));
    assert!(refused(b"<html>not found</html>").len() > 5);
    assert!(refused(&number(1, 8)).contains("0 graphs"));
    assert!(refused(&[number(1, 8), bytes(7, b""), bytes(7, b"")].concat()).contains("2 graphs"));
    assert!(refused(&[0xff; 12]).contains("10 bytes"));
    assert!(refused(&[0x0b, 0]).contains("wire type 3"));
    assert!(refused(&bytes(7, &[0x0a])).contains("truncated"));
}

#[test]
fn truncated_files_are_refused() {
    let whole = graph("task-classify");
    let graph_end = whole.len();
    // Only the end of the file, after the graph, may be missing without a trace.
    let accepted = (0..graph_end).rev().take_while(|end| parse(&whole[..*end]).is_ok()).count();
    assert!(accepted < 64, "{accepted}");
    for end in 0..graph_end - 64 {
        assert!(parse(&whole[..end]).is_err(), "{end}");
    }
}

#[test]
fn damaged_files_give_a_head_or_an_error() {
    let whole = graph("task-classify");
    let meaningful: &[&[u8]] = &[&[0x0a], &[0x2a, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x32], &[0x80; 11]];
    sconce_testkit::check(
        3000,
        &mutations(1..=6, &[0, 1, 0x0a, 0x2a, 0x3a, 0x7f, 0x80, 0xff], meaningful),
        |changes| {
            let mut bytes = whole.clone();
            changes.iter().for_each(|change| change.apply(&mut bytes, usize::MAX));
            if let Err(why) = parse(&bytes) {
                assert!(!why.is_empty());
            }
        },
    );
}
