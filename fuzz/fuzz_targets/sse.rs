//! Passes libFuzzer's inputs to the properties of `sse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::sse::check(input));
