//! Passes libFuzzer's inputs to the properties of `decode`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::decode::check(input));
