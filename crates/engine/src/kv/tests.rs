use super::*;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

impl Blocks {
    /// The invariants between two calls.
    pub(crate) fn check(&self) {
        let mut owners = vec![0; self.count()];
        for table in self.tables.values() {
            assert_eq!(table.blocks.len(), table.len.div_ceil(self.size));
            let mut before = EMPTY_PREFIX;
            for (i, b) in table.blocks.iter().enumerate() {
                owners[*b as usize] += 1;
                let text = self.blocks[*b as usize].prefix.as_ref();
                if i < table.cached {
                    let text = text.expect("cached");
                    assert_eq!(
                        text.key[..2],
                        [before as u32, (before >> 32) as u32],
                        "a cached block follows another text"
                    );
                    before = text.id;
                }
            }
            assert_eq!(before, table.prefix);
        }
        let mut free = 0;
        let mut numbers: Vec<u64> = vec![EMPTY_PREFIX];
        for (i, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.owners, owners[i], "block {i}");
            free += usize::from(block.owners == 0);
            if let Some(text) = &block.prefix {
                assert_eq!(self.cached.get(&text.key), Some(&(i as u32)));
                numbers.push(text.id);
            }
        }
        assert_eq!(free, self.free_blocks());
        assert_eq!(self.cached.len() + 1, numbers.len());
        // No cached continuation is unreachable.
        numbers.sort_unstable();
        for key in self.cached.keys() {
            let before = u64::from(key[0]) | u64::from(key[1]) << 32;
            assert!(numbers.binary_search(&before).is_ok(), "the prefix of a cached block is missing");
        }
    }
}

fn run(blocks: &mut Blocks, sequence: SeqId, tokens: &[u32]) -> usize {
    let hit = blocks.allocate(sequence, tokens);
    assert_eq!(blocks.reserve(sequence, tokens.len() - hit), Ok(None));
    blocks.mark_computed(sequence, tokens);
    blocks.check();
    hit
}

#[test]
fn prefix_cache_hits_exclude_the_last_token() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let text: Vec<u32> = (0..12).collect();
    assert_eq!(run(&mut blocks, A, &text), 0);
    assert_eq!(blocks.slots(A, 3..6).collect::<Vec<_>>(), [3, 4, 5]);
    // Everything is cached, but the last token must be computed, and with it its block.
    assert_eq!(run(&mut blocks, B, &text), 8);
    // Afterwards it is the same block.
    assert_eq!(blocks.table(A), blocks.table(B));
    assert_eq!(blocks.free_blocks(), 7);
    // The same tokens after another prefix are another text.
    let other: Vec<u32> = [9, 9, 9, 9].into_iter().chain(4..12).collect();
    assert_eq!(run(&mut blocks, C, &other), 0);
    assert_eq!(blocks.stats(), Stats { queried: 36, hit: 8, evicted: 0 });
    [A, B, C].iter().for_each(|s| blocks.free(*s));
    blocks.check();
    assert_eq!(blocks.free_blocks(), 10);
    // Freed blocks stay in the prefix cache.
    assert_eq!(run(&mut blocks, A, &(0..13).collect::<Vec<_>>()), 12);
}

#[test]
fn blocks_are_cached_only_once_computed() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let text: Vec<u32> = (0..12).collect();
    blocks.allocate(A, &text);
    blocks.reserve(A, 12).unwrap();
    assert_eq!(blocks.allocate(B, &text), 0);
    blocks.mark_computed(A, &text[..7]);
    assert_eq!(blocks.allocate(B, &text), 4);
    blocks.check();
}

#[test]
fn forks_share_blocks_until_the_first_write() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    run(&mut blocks, A, &[1, 2, 3, 4, 5, 6]);
    blocks.fork(A, B);
    blocks.fork(A, C);
    blocks.check();
    assert_eq!(blocks.free_blocks(), 8);
    assert_eq!((blocks.need(A, 1), blocks.capacity(A, 1), blocks.capacity(A, 0)), (1, 2, 0));
    assert_eq!(blocks.reserve(A, 1), Ok(Some((1, 2))));
    assert_eq!(blocks.reserve(B, 1), Ok(Some((1, 3))));
    // The last owner need not copy.
    assert_eq!(blocks.reserve(C, 1), Ok(None));
    assert_eq!(blocks.reserve(A, 1), Ok(None));
    blocks.check();
    assert_eq!([A, B, C].map(|s| blocks.table(s).to_vec()), [[0, 2], [0, 3], [0, 1]]);
    // A full last block is never written again.
    blocks.fork(A, B);
    assert_eq!(blocks.reserve(A, 1), Ok(None));
    assert_eq!(blocks.reserve(B, 1), Ok(None));
    blocks.check();
}

#[test]
fn failed_reservations_report_missing_blocks_and_take_none() {
    let mut blocks = Blocks::new(3, 4).unwrap();
    blocks.allocate(A, &[1; 20]);
    assert_eq!(blocks.reserve(A, 13), Err(OutOfBlocks { need: 4, free: 3 }));
    assert_eq!(blocks.len(A), Some(0));
    blocks.reserve(A, 12).unwrap();
    assert_eq!(blocks.capacity(A, 0), 0);
    blocks.fork(A, B);
    assert_eq!(blocks.reserve(B, 1), Err(OutOfBlocks { need: 1, free: 0 }));
    blocks.free(A);
    assert_eq!(blocks.free_blocks(), 0);
    blocks.free(B);
    blocks.free(B);
    blocks.check();
    assert_eq!(blocks.free_blocks(), 3);
    assert!(Blocks::new(0, 16).is_err() && Blocks::new(16, 0).is_err() && Blocks::new(1 << 30, 16).is_err());
}

#[test]
fn eviction_is_lru_and_takes_suffixes_before_prefixes() {
    let mut blocks = Blocks::new(4, 2).unwrap();
    run(&mut blocks, A, &[1, 2, 3, 4, 5]);
    blocks.free(A);
    run(&mut blocks, B, &[6, 7]);
    blocks.free(B);
    // Uncached blocks first; then [3, 4], the end of the older text.
    run(&mut blocks, C, &[8, 9, 10]);
    blocks.free(C);
    assert_eq!(blocks.stats().evicted, 1);
    assert_eq!(blocks.allocate(A, &[1, 2, 3, 4, 5]), 2);
    assert_eq!(blocks.allocate(B, &[6, 7, 0]), 2);
    blocks.check();
}

#[test]
fn restored_prefixes_are_cached_and_not_counted() {
    let mut blocks = Blocks::new(6, 2).unwrap();
    run(&mut blocks, A, &[1, 2, 3, 4]);
    blocks.free(A);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!((blocks.cached_len(&tokens), blocks.cached_len(&tokens[..4])), (4, 2));
    let before = blocks.stats();
    // From the second block on: the own copy of [3, 4] is given back.
    blocks.begin_restore(B, &tokens, 2).unwrap();
    blocks.check();
    blocks.mark_computed(B, &tokens[..6]);
    blocks.free(B);
    blocks.check();
    assert_eq!((blocks.stats(), blocks.free_blocks()), (before, 6));
    assert_eq!(blocks.allocate(C, &tokens), 6, "what was not marked is not cached");
    blocks.reserve(C, 2).unwrap();
    let many = [9; 20];
    assert_eq!(blocks.begin_restore(A, &many, 0), Err(OutOfBlocks { need: 10, free: 2 }));
    assert_eq!(blocks.len(A), None);
    blocks.check();
}
