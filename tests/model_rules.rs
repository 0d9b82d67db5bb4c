//! The rules under fixed seeds; the same functions are fuzz targets.
#![cfg(feature = "test-util")]

use winddown::testing::model as model_rules;

const SEEDS: u64 = 20_000;

/// Calls `model` with bytes of every length, the same in each run.
fn each_seed(model: fn(&[u8])) {
    for seed in 1..=SEEDS {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut bytes = vec![0; (seed % 257) as usize];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        model(&bytes);
    }
}

#[test]
fn a_plan_keeps_its_promises_whatever_the_budget() {
    each_seed(model_rules::budget);
}

#[test]
fn escalation_only_goes_forward_whatever_the_signals() {
    each_seed(model_rules::escalation);
}

#[test]
fn a_text_is_a_duration_or_an_error_and_never_a_panic() {
    each_seed(model_rules::duration);
    // Of random bytes next to nothing is a duration, so texts of the right letters too.
    each_seed(|bytes| {
        let letters = b"0123456789.hms  s";
        let text: Vec<u8> =
            bytes.iter().take(12).map(|byte| letters[usize::from(*byte) % letters.len()]).collect();
        model_rules::duration(&text);
    });
}
