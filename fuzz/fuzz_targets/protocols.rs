//! Passes libFuzzer's inputs to the properties of `protocols`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::protocols::check(input));
