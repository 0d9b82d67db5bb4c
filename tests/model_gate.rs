//! The models of gate, intake and server under fixed seeds; the same functions are fuzz targets.
#![cfg(feature = "test-util")]

use winddown::testing::model;

/// Calls `model` with bytes of every length up to `longest`, the same in each run.
fn each_seed(seeds: u64, longest: u64, model: fn(&[u8])) {
    for seed in 1..=seeds {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut bytes = vec![0; (seed % longest) as usize];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        let ended = std::panic::catch_unwind(|| model(&bytes));
        assert!(ended.is_ok(), "seed {seed}: {bytes:?}");
    }
}

#[test]
fn a_gate_counts_what_is_in_whatever_the_order() {
    each_seed(5_000, 257, model::gate);
}

#[test]
fn every_item_ends_exactly_once_whatever_the_order() {
    each_seed(1_000, 193, model::intake);
}

#[cfg(feature = "http")]
#[test]
fn a_server_ends_in_time_and_knows_each_peer_whatever_these_send() {
    each_seed(500, 193, model::http);
}
