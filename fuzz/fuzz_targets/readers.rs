//! Passes libFuzzer's inputs to the properties of `readers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::readers::check(input));
