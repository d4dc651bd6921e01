//! `weir init`: asks where requests go, who uses weir and for a monthly budget, and writes a commented
//! configuration. Starts nothing.

mod answers;
mod template;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write, stderr, stdin};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use self::answers::{Answers, Provider, Spending, provider, spending};
use super::colours::{BOLD, Colours, DIM, GREEN};
use super::{print, reason, store_path};
use weir_store::budget::{Budget, BudgetId, Measure, NanoUsd, Scope, Window};
use weir_store::{files, now_ms};

/// Maximum length of an answer.
const MAX_ANSWER_BYTES: u64 = 4096;
/// Share at which a budget warns, in thousandths.
const WARN_PERMILLE: u16 = 800;

const UNPRICED: &str = "\
Models of your own server have no price, so nothing counts until [prices] or [models] sets one.
`weir budgets set all --tokens N --per month` counts tokens instead.
";

const EXAMPLES: &str = "\
Examples:
  weir init
      asks three questions and writes weir.toml
  weir init --yes
      the default answers: OpenAI, for yourself, without a budget
  weir init --provider http://127.0.0.1:11434/v1 --users me --budget none
      the same answers as flags, for scripts
  weir init --provider anthropic --users team --budget 200 --output /etc/weir/weir.toml
  weir init --yes --output -
      prints the configuration and writes nothing

An existing file is left alone, unless you give --force. A budget is kept in the store, where `weir \
budgets` changes it.";

/// Asks three questions and writes a commented configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct InitArgs {
    /// The file to write; - prints it
    #[arg(long, short, value_name = "FILE", default_value = "weir.toml")]
    output: PathBuf,
    /// Replaces an existing file
    #[arg(long)]
    force: bool,
    /// Takes the default answer to each question that no flag answers
    #[arg(long, short)]
    yes: bool,
    /// Where requests go: openai, anthropic, local, or a base URL
    #[arg(long, value_name = "NAME|URL", value_parser = provider)]
    provider: Option<Provider>,
    /// Who uses weir: me, or a team with keys that weir gives out
    #[arg(long, value_enum, value_name = "WHO")]
    users: Option<Users>,
    /// Most dollars a month, or none
    #[arg(long, value_name = "USD|none", value_parser = spending)]
    budget: Option<Spending>,
    /// The store's file, for the budget and in the configuration [default: weir/weir.db in the
    /// user's state folder]
    #[arg(long, value_name = "FILE")]
    store: Option<String>,
}

/// Users of a weir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Users {
    /// Each program sends its own provider key
    Me,
    /// weir has the provider's key and gives out its own
    Team,
}

/// Runs `weir init`.
pub(super) fn run(args: &InitArgs) -> Result<(), String> {
    let is_printed = args.output.as_os_str() == "-";
    if !is_printed {
        check_place(&args.output, args.force)?;
    }
    let colours = Colours::of_stderr();
    let mut dialogue = Dialogue::new(BufReader::new(stdin()), stderr(), colours, args.yes);
    let answers = dialogue.answers(args)?;
    let text = template::text(&answers, args.store.as_deref(), &args.output);
    if is_printed {
        return print(&text);
    }
    write(&args.output, &text, args.force)
        .map_err(|error| format!("cannot write {}: {}", args.output.display(), reason(&error)))?;
    let colours = Colours::of_stdout();
    print(&format!("{} {}\n", colours.paint(GREEN, "wrote"), args.output.display()))?;
    let budget = answers.budget.map(|amount| set_budget(&args.output, amount)).transpose();
    if let Ok(Some(said)) = &budget {
        print(said)?;
        if matches!(answers.provider, Provider::Local(_)) {
            print(UNPRICED)?;
        }
    }
    print(&next(&answers, &args.output, colours))?;
    budget.map(|_| ())
}

/// Refuses a place that has something else than a file to replace.
fn check_place(path: &Path, is_forced: bool) -> Result<(), String> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let path = path.display();
    if found.is_symlink() {
        return Err(format!(
            "{path} is a symbolic link, which weir does not replace; name the file itself with \
             --output FILE"
        ));
    }
    if !found.is_file() {
        return Err(format!("{path} is not a file; name another with --output FILE"));
    }
    match is_forced {
        true => Ok(()),
        false => Err(format!("{path} exists; --force replaces it, --output FILE names another")),
    }
}

/// Writes the file completely or not at all, and replaces an existing one only if `is_forced`.
fn write(path: &Path, text: &str, is_forced: bool) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    // Neither follows a link, and only a renamed file has the name.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    files::write_whole(path, &options, text, |new, path| match is_forced {
        true => keep_mode(path, new).and_then(|()| fs::rename(new, path)),
        false => files::put_new(new, path),
    })
}

/// Gives the new file the permissions of the one that it replaces, if there is one.
fn keep_mode(path: &Path, new: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(old) => fs::set_permissions(new, old.permissions()),
        Err(_) => Ok(()),
    }
}

/// Sets the budget of all callers in the store of the new configuration.
fn set_budget(config: &Path, amount: NanoUsd) -> Result<String, String> {
    let command = format!(
        "weir budgets set all --usd {} --per month --config {}",
        amount.to_decimal(),
        config.display()
    );
    let set = || {
        let config = store_path::configuration(Some(config), None)?;
        let store = store_path::kept(&config)?;
        let id = BudgetId {
            scope: Scope::parse("all")?,
            measure: Measure::NanoUsd,
            window: Window::Month,
        };
        let budget = Budget { id, limit: amount.0, warn_permille: Some(WARN_PERMILLE) };
        let shown = budget.id.measure.shown(budget.limit);
        super::block_on(async {
            let set = store.set_budget(budget, now_ms()).await;
            set.map_err(|error| error.to_string())
        })?;
        let place = store.file().map_or("the store".to_owned(), |file| file.display().to_string());
        Ok(format!("set a budget of {shown} a month in {place}\n"))
    };

    set().map_err(|problem: String| {
        format!("the budget is not set: {problem}\nOnce that is mended, set it with: {command}")
    })
}

/// Says how to go on.
fn next(answers: &Answers, path: &Path, colours: Colours) -> String {
    let config = path.display();
    let mut lines = vec![colours.paint(BOLD, "Next:")];
    let mut add = |command: &str, about: &str| {
        lines.push(format!("  {command}"));
        lines.push(format!("      {}", colours.paint(DIM, about)));
    };
    if let Some(variable) = answers.variable().filter(|name| std::env::var_os(name).is_none()) {
        let about = match answers.provider {
            Provider::Local(_) => "any text, if the server needs no key",
            _ => "the provider's key, which weir reads from the environment",
        };
        add(&format!("export {variable}=…"), about);
    }
    add(&format!("weir serve --config {config}"), "serves, until you end it with Ctrl-C");
    match answers.users {
        Users::Team => add(
            &format!("weir keys create NAME --team TEAM --config {config}"),
            "in another terminal: makes a key, which callers use as their API key",
        ),
        Users::Me => {
            add(&answers.provider.usage(), "in another terminal: runs an application through weir")
        }
    }
    lines.join("\n") + "\n"
}

/// Questions and answers. Questions go to `output`, since standard output may be a file.
struct Dialogue<I, O> {
    input: I,
    output: O,
    colours: Colours,
    /// Whether each question has its default answer.
    is_silent: bool,
}

impl<I: BufRead, O: Write> Dialogue<I, O> {
    fn new(input: I, output: O, colours: Colours, is_silent: bool) -> Self {
        Self { input, output, colours, is_silent }
    }

    /// Asks each question that no flag answers.
    fn answers(&mut self, args: &InitArgs) -> Result<Answers, String> {
        let provider = args.provider.clone().map_or_else(|| self.provider(), Ok)?;
        let users = args.users.map_or_else(|| self.users(), Ok)?;
        let Spending(budget) = args.budget.map_or_else(|| self.budget(), Ok)?;
        Ok(Answers { provider, users, budget })
    }

    fn provider(&mut self) -> Result<Provider, String> {
        let question = "Where do requests go?";
        let choices = [
            "OpenAI",
            "Anthropic",
            "a server on this machine, such as Ollama, vLLM or llama.cpp",
            "another provider with an OpenAI-compatible API",
        ];
        let chosen = self.ask(question, &choices, "1", |text| match text {
            "3" => Ok(Provider::Local(String::new())),
            "4" => Ok(Provider::Other(String::new())),
            "1" => Ok(Provider::OpenAi),
            "2" => Ok(Provider::Anthropic),
            other => provider(other).map_err(|_| {
                "write a number from 1 to 4, or a base URL such as https://host/v1".to_owned()
            }),
        })?;
        match chosen {
            Provider::Local(url) if url.is_empty() => {
                self.ask("Its base URL?", &[], answers::LOCAL, provider)
            }
            Provider::Other(url) if url.is_empty() => {
                self.ask("Its base URL, as you would give it to an SDK?", &[], "", provider)
            }
            chosen => Ok(chosen),
        }
    }

    fn users(&mut self) -> Result<Users, String> {
        let choices = [
            "just me: each program sends its own provider key",
            "a team: weir has the provider's key and gives out keys of its own",
        ];
        self.ask("Who uses it?", &choices, "1", |text| match text {
            "1" | "me" => Ok(Users::Me),
            "2" | "team" => Ok(Users::Team),
            _ => Err("write 1 or 2".to_owned()),
        })
    }

    fn budget(&mut self) -> Result<Spending, String> {
        self.ask("Most dollars a month for all requests, or none?", &[], "none", spending)
    }

    /// Asks until an answer is valid. An empty line is the default.
    fn ask<T>(
        &mut self,
        question: &str,
        choices: &[&str],
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        if self.is_silent {
            return read(default);
        }
        let failed = |error: std::io::Error| format!("cannot ask: {error}");
        let mut text = format!("{}\n", self.colours.paint(BOLD, question));
        for (place, choice) in choices.iter().enumerate() {
            text.push_str(&format!("  {}  {choice}\n", place + 1));
        }
        let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        write!(self.output, "{text}").map_err(failed)?;
        loop {
            write!(self.output, "Answer{}: ", self.colours.paint(DIM, &shown)).map_err(failed)?;
            self.output.flush().map_err(failed)?;
            let mut line = String::new();
            let mut limited = std::io::Read::take(&mut self.input, MAX_ANSWER_BYTES);
            if limited.read_line(&mut line).map_err(failed)? == 0 {
                // Ends the line of the prompt.
                let _ = writeln!(self.output);
                return Err("there was no answer. Run `weir init` in a terminal, answer with \
                            --provider, --users and --budget, or take the defaults with --yes"
                    .to_owned());
            }
            let answer = line.trim();
            match read(if answer.is_empty() { default } else { answer }) {
                Ok(value) => {
                    writeln!(self.output).map_err(failed)?;
                    return Ok(value);
                }
                Err(problem) => writeln!(self.output, "  {problem}").map_err(failed)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(input: &str) -> (Result<Answers, String>, String) {
        let args = InitArgs {
            output: PathBuf::from("weir.toml"),
            force: false,
            yes: false,
            provider: None,
            users: None,
            budget: None,
            store: None,
        };
        let mut output = Vec::new();
        let mut dialogue = Dialogue::new(input.as_bytes(), &mut output, Colours(false), false);
        let answers = dialogue.answers(&args);
        (answers, String::from_utf8(output).expect("text"))
    }

    #[test]
    fn answers_are_numbers_names_or_urls() {
        let fifty = Some(NanoUsd(50_000_000_000));
        let other = |url: &str| Provider::Other(url.to_owned());
        for (input, provider, users, budget) in [
            ("\n\n\n", Provider::OpenAi, Users::Me, None),
            ("2\n2\n50\n", Provider::Anthropic, Users::Team, fifty),
            ("anthropic\nteam\n$50.00\n", Provider::Anthropic, Users::Team, fifty),
            ("3\n\n1\nnone\n", Provider::Local(answers::LOCAL.to_owned()), Users::Me, None),
            ("4\nhttps://llm.example/v1\n\n\n", other("https://llm.example/v1"), Users::Me, None),
            ("https://llm.example/v1\n\n\n", other("https://llm.example/v1"), Users::Me, None),
            // Wrong answers are asked for again.
            ("9\n1\nthey\nme\nmuch\n0\n50\n", Provider::OpenAi, Users::Me, fifty),
            ("4\n\nftp://x\nhttps://x/v1\n\n\n", other("https://x/v1"), Users::Me, None),
        ] {
            let (answers, said) = asked(input);
            let expected = Answers { provider, users, budget };
            assert_eq!(answers, Ok(expected), "{input:?}: {said}");
        }
    }

    #[test]
    fn an_end_of_input_is_no_answer() {
        let (answers, said) = asked("1\n");
        assert!(answers.expect_err("two answers are missing").contains("--yes"));
        assert!(said.contains("Who uses it?"), "{said}");
    }
}
