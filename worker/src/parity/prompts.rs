//! Prompts that need no tokenizer: fixed pseudo-random token ids.

/// Lengths in tokens; the last three are the gate of an engine upgrade.
const LENGTHS: [(&str, usize); 6] = [
    ("single", 1),
    ("short", 8),
    ("medium", 100),
    ("long512", 512),
    ("long2048", 2048),
    ("long4000", 4000),
];

/// The prompts that fit `most` tokens, by name. The same for every model with this vocabulary.
pub(super) fn generated(vocab: usize, most: usize) -> Vec<(String, Vec<u32>)> {
    let fitting = LENGTHS.iter().filter(|(_, length)| *length <= most);
    fitting.map(|(name, length)| ((*name).to_owned(), ids(vocab, *length))).collect()
}

/// Steps of Knuth's linear congruential generator, upper half taken. A short stretch repeats, as text does.
fn ids(vocab: usize, length: usize) -> Vec<u32> {
    const REPEATED: usize = 16;
    let mut state: u64 = length as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab as u64) as u32
    };
    let mut ids: Vec<u32> = Vec::with_capacity(length);
    while ids.len() < length {
        let back = next() as usize;
        if back.is_multiple_of(8) && ids.len() > 2 * REPEATED {
            let from = back % (ids.len() - REPEATED);
            ids.extend_from_within(from..from + REPEATED);
        } else {
            ids.push(next());
        }
    }
    ids.truncate(length);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_lengths_and_stay_the_same() {
        let prompts = generated(1000, 3000);
        let lengths: Vec<usize> = prompts.iter().map(|(_, ids)| ids.len()).collect();
        assert_eq!(lengths, [1, 8, 100, 512, 2048]);
        assert!(prompts.iter().all(|(_, ids)| ids.iter().all(|&id| id < 1000)));
        assert_eq!(prompts, generated(1000, 3000));
    }
}
