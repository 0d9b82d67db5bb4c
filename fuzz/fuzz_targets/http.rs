#![no_main]

use libfuzzer_sys::fuzz_target;
use winddown::testing::model;

fuzz_target!(|data: &[u8]| model::http(data));
