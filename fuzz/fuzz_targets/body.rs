//! Passes libFuzzer's inputs to the properties of `body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::body::check(input));
