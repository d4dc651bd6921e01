//! Passes libFuzzer's inputs to the properties of `recall_tool`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir_fuzz::recall_tool::check(input));
