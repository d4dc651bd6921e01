//! Passes libFuzzer's inputs to the properties of `unasked`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::unasked::check(input));
