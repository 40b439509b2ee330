use super::*;

const START: u32 = 7;

/// Pages of 4 tokens: 4 for inputs, 12 for answers; a step encodes 10 tokens or decodes 3
/// sequences.
fn setup() -> (Seq2SeqScheduler, Blocks, Blocks) {
    let scheduler = Seq2SeqScheduler::new(Seq2SeqBudget { tokens: 10, sequences: 3 }, START);
    (scheduler, Blocks::new(4, 4).unwrap(), Blocks::new(12, 4).unwrap())
}

fn input(length: usize, width: usize, first: usize) -> Input {
    Input { ids: vec![1; length], width, first, most: 8 }
}

fn encoded_requests(step: Option<Seq2SeqStep>) -> Vec<u64> {
    match step {
        Some(Seq2SeqStep::Encode(inputs)) => inputs.iter().map(|(request, ..)| *request).collect(),
        other => panic!("{other:?}"),
    }
}

fn decoded_rows(step: &Option<Seq2SeqStep>) -> Vec<(u64, u32, usize)> {
    match step {
        Some(Seq2SeqStep::Decode { rows, .. }) => rows.iter().map(|r| (r.request, r.token, r.position)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn inputs_are_admitted_in_order_between_decode_steps() {
    let (mut scheduler, mut input_blocks, mut output_blocks) = setup();
    (0..4).for_each(|id| scheduler.submit(id, input(4, 1, 1)));
    assert_eq!((scheduler.waiting(), scheduler.waiting_tokens()), (4, 16));
    // Ten tokens at once: two of the four.
    assert_eq!(encoded_requests(scheduler.step(&mut input_blocks, &mut output_blocks)), [0, 1]);
    let step = scheduler.step(&mut input_blocks, &mut output_blocks);
    assert_eq!(decoded_rows(&step), [(0, START, 0), (1, START, 0)]);
    let advance = |request, token| (request, vec![Continued { beam: 0, token }]);
    scheduler.commit(&mut input_blocks, &mut output_blocks, vec![advance(0, 50), advance(1, 51)]);
    // Three sequences at once: one more.
    assert_eq!(encoded_requests(scheduler.step(&mut input_blocks, &mut output_blocks)), [2]);
    let step = scheduler.step(&mut input_blocks, &mut output_blocks);
    assert_eq!(decoded_rows(&step), [(0, 50, 1), (1, 51, 1), (2, START, 0)]);
    // One ends, and the last is admitted.
    scheduler.commit(&mut input_blocks, &mut output_blocks, vec![advance(0, 52), (1, vec![]), advance(2, 53)]);
    assert_eq!(encoded_requests(scheduler.step(&mut input_blocks, &mut output_blocks)), [3]);
    assert_eq!(scheduler.tokens(0), [&[START, 50, 52][..]]);
    (0..4).for_each(|id| scheduler.release(&mut input_blocks, &mut output_blocks, id));
    assert_eq!(scheduler.step(&mut input_blocks, &mut output_blocks), None);
    assert_eq!((input_blocks.free_blocks(), output_blocks.free_blocks()), (4, 12));
}

#[test]
fn beams_share_blocks_until_they_write() {
    let (mut scheduler, mut input_blocks, mut output_blocks) = setup();
    scheduler.submit(0, input(4, 3, 1));
    scheduler.step(&mut input_blocks, &mut output_blocks);
    let step = scheduler.step(&mut input_blocks, &mut output_blocks);
    assert_eq!(decoded_rows(&step).len(), 1);
    let beams = |of: &[(usize, u32)]| of.iter().map(|(beam, token)| Continued { beam: *beam, token: *token }).collect();
    scheduler.commit(&mut input_blocks, &mut output_blocks, vec![(0, beams(&[(0, 10), (0, 11), (0, 12)]))]);
    let Some(Seq2SeqStep::Decode { copies, rows }) = scheduler.step(&mut input_blocks, &mut output_blocks) else {
        panic!()
    };
    // Two of three copy the shared page; its last owner need not.
    assert_eq!((copies.len(), rows.len()), (2, 3));
    // One beam continues twice, one once, one not at all.
    scheduler.commit(&mut input_blocks, &mut output_blocks, vec![(0, beams(&[(2, 20), (0, 21), (2, 22)]))]);
    assert_eq!(scheduler.tokens(0), [&[START, 12, 20][..], &[START, 10, 21], &[START, 12, 22]]);
    scheduler.release(&mut input_blocks, &mut output_blocks, 0);
    assert_eq!((input_blocks.free_blocks(), output_blocks.free_blocks()), (4, 12));
}

#[test]
fn released_request_frees_capacity_for_the_next() {
    let (mut scheduler, mut input_blocks, mut output_blocks) = setup();
    scheduler.submit(0, input(16, 3, 3));
    scheduler.submit(1, input(16, 3, 3));
    assert_eq!(encoded_requests(scheduler.step(&mut input_blocks, &mut output_blocks)), [0]);
    scheduler.release(&mut input_blocks, &mut output_blocks, 0);
    // There is no answer to decode, so the next input is encoded at once.
    assert_eq!(encoded_requests(scheduler.step(&mut input_blocks, &mut output_blocks)), [1]);
}
