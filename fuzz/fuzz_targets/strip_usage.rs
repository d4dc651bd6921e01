//! Passes libFuzzer's inputs to the properties of `strip_usage`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::strip_usage::check(input));
