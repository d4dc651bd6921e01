//! Reads tokenizer files of models that the configuration names.

use std::io::Read;

use super::config_files;
use crate::config::Config;
use weir_engine::tokens::own::{MAX_TOKENIZER_BYTES, Vocabulary};

/// Loads the tokenizer files in `config`, so that tokens of their models are counted with them.
/// Returns what is wrong: each text names the configuration's key and the file.
pub(super) fn read_all(config: &mut Config) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, settings) in &config.model_settings {
        let Some(path) = &settings.tokenizer else { continue };
        match bytes(path).and_then(|bytes| Vocabulary::read(&bytes)) {
            Ok(vocabulary) => config.models.count_by(name, vocabulary),
            Err(problem) => problems.push(format!(
                "models.\"{name}\".tokenizer: {path} {problem}; give the tokenizer.json that comes \
                 with the model, or leave the key out to have its tokens estimated"
            )),
        }
    }
    problems
}

/// Reads a file, up to one byte more than the limit.
fn bytes(path: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let most = MAX_TOKENIZER_BYTES as u64 + 1;
    let read = config_files::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {}", super::reason(&error)))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::config;
    use weir_engine::tokens::Encoding;

    fn read(path: &str) -> Result<Config, Vec<String>> {
        let text = format!("[models.\"Mine\"]\nwindow_tokens = 4096\ntokenizer = {path:?}");
        let (mut config, _) =
            config::load(Figment::from(Toml::string(&text))).expect("it is right");
        let problems = read_all(&mut config);
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    #[test]
    fn a_vocabulary_goes_with_the_last_configuration_that_has_it() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("weir-vocabulary-{}.json", std::process::id()));
        let shipped = include_str!("../../tests/data/tokenizers/pieces.json");
        let encoding = |number: usize| {
            // A different file each time, as if it changed repeatedly.
            let text = format!("{shipped}{}", "\n".repeat(number));
            std::fs::write(&path, text).expect("a temporary folder");
            let config = read(&path.display().to_string()).expect("a tokenizer.json");
            let encoding = config.models.find("mine").entry.encoding;
            (encoding, config)
        };
        let text = "Some words, twice and more";
        let (first, config) = encoding(1);
        let tokens = first.count(text);
        let (second, other) = encoding(2);
        assert_ne!(first, second);
        let kept = config.clone();
        drop(config);
        assert_eq!([first.count(text), second.count(text)], [tokens, tokens]);
        drop((kept, other));
        // A dropped tokenizer counts bytes.
        assert_eq!([first, second].map(|gone| gone.count(text)), [text.len() as u64; 2]);
        std::fs::remove_file(&path).expect("it is ours");
    }

    #[test]
    fn a_file_is_read_or_named_with_a_cure() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers");
        let config = read(&format!("{folder}/bytes.json")).expect("a tokenizer.json");
        assert!(matches!(config.models.find("mine").entry.encoding, Encoding::Own(_)));
        assert_eq!(config.models.find("mine").entry.window_tokens, 4096);
        for (path, said) in [
            (format!("{folder}/nowhere.json"), "cannot be read: "),
            (format!("{folder}/README.md"), "is no tokenizer.json that can be used: "),
            (folder.to_owned(), "cannot be read: "),
        ] {
            let problems = read(&path).expect_err("no tokenizer.json");
            let [problem] = problems.as_slice() else { panic!("one: {problems:?}") };
            let expected = format!("models.\"mine\".tokenizer: {path} {said}");
            assert!(
                problem.starts_with(&expected) && problem.contains("leave the key out"),
                "{problem}"
            );
        }
    }
}
