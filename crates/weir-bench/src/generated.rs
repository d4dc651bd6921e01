//! Conversations made from a seed: the run of a coding agent with tools, and a long chat. Later answers use
//! values that earlier messages gave, and rules and facts can be planted at any depth.

use serde_json::{Value, json};

use super::random::Random;
use super::{Case, Plant, Planted};

const WORDS: [&str; 64] = [
    "account", "answer", "bridge", "budget", "cabin", "change", "circle", "client", "column",
    "corner", "counter", "couple", "delay", "device", "engine", "estate", "factor", "family",
    "figure", "finger", "garden", "ground", "handle", "harbor", "import", "island", "jacket",
    "kettle", "ladder", "letter", "margin", "market", "member", "mirror", "moment", "number",
    "office", "orange", "packet", "parcel", "pencil", "people", "pocket", "portal", "record",
    "region", "result", "safety", "sample", "second", "select", "silver", "simple", "stream",
    "summer", "supply", "ticket", "travel", "update", "valley", "window", "winter", "worker",
    "yellow",
];
const NAMES: [&str; 12] = [
    "Amara Okafor",
    "Bruno Keller",
    "Chiara Conti",
    "Dmitri Sokolov",
    "Elif Yilmaz",
    "Farid Haddad",
    "Greta Lindholm",
    "Hana Suzuki",
    "Ivo Novak",
    "Jorge Campos",
    "Katya Orlova",
    "Lena Brandt",
];
/// Steps of a generated agent run.
const AGENT_STEPS: usize = 64;
/// Exchanges of a generated chat.
const CHAT_EXCHANGES: usize = 48;
/// Steps after which the user of an agent says something.
const STEPS_PER_USER: usize = 6;
/// Depths at which rules are planted.
pub const DEPTHS: usize = 10;
/// Facts planted in the first part of a conversation.
const FACTS: usize = 20;
/// Part of a conversation that holds the facts, in percent of its turns.
const FACTS_PERCENT: usize = 15;
/// Sentences in one crowding message.
const CROWD_SENTENCES: usize = 60;
/// Messages with crowding text.
const CROWD_MESSAGES: usize = 4;

/// Value that a message gave and a later answer may use.
struct Given {
    value: String,
    path: String,
}

/// Conversation under construction.
struct Draft {
    random: Random,
    messages: Vec<Value>,
    given: Vec<Given>,
    calls: usize,
    edits: usize,
}

impl Draft {
    fn new(seed: u64, purpose: u64) -> Self {
        Self {
            random: Random::new(seed, purpose),
            messages: Vec::new(),
            given: Vec::new(),
            calls: 0,
            edits: 0,
        }
    }

    fn say(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    fn word(&mut self) -> &'static str {
        self.random.pick::<&'static str>(&WORDS)
    }

    fn sentence(&mut self) -> String {
        let words: Vec<&str> = (0..8 + self.random.below(8)).map(|_| self.word()).collect();
        format!("The {}.", words.join(" "))
    }

    fn number(&mut self) -> u64 {
        10_000 + self.random.next() % 90_000
    }

    fn path(&mut self) -> String {
        let (folder, name) = (self.word(), self.word());
        format!("src/{folder}/{name}_{}.rs", self.random.below(90) + 10)
    }

    /// Returns a path, most often one that a message named before.
    fn known_path(&mut self) -> String {
        match self.random.below(3) {
            0 => self.path(),
            _ if self.given.is_empty() => self.path(),
            _ => {
                let known = self.random.below(self.given.len());
                self.given[known].path.clone()
            }
        }
    }

    fn give(&mut self, value: &str, path: &str) {
        self.given.push(Given { value: value.to_owned(), path: path.to_owned() });
    }

    /// Returns a sentence that uses values of earlier messages.
    fn citation(&mut self) -> String {
        if self.given.is_empty() {
            return "I start with an overview.".to_owned();
        }
        let (first, second) =
            (self.random.below(self.given.len()), self.random.below(self.given.len()));
        let (first, second) = (&self.given[first], &self.given[second]);
        format!("`{}` from {} has to agree with `{}`.", first.value, first.path, second.value)
    }

    fn file(&mut self, path: &str) -> String {
        let mut lines = vec![format!("// {path}")];
        for _ in 0..18 {
            let line = match self.random.below(4) {
                0 => {
                    let name = format!("{}_{}", self.word(), self.word()).to_uppercase();
                    let value = self.number();
                    self.give(&name, path);
                    format!("const {name}: u32 = {value};")
                }
                1 => format!("// {}", self.sentence()),
                2 => format!("let {} = {}.{}();", self.word(), self.word(), self.word()),
                _ => format!("    {}({}, {});", self.word(), self.word(), self.word()),
            };
            lines.push(line);
        }
        lines.join("\n")
    }

    fn records(&mut self, path: &str) -> String {
        let mut records = Vec::new();
        for _ in 0..5 {
            let (id, port) = (format!("ord_{}", self.number()), self.number());
            let owner = *self.random.pick(&NAMES);
            let host = format!("{}-{}.example.net", self.word(), self.random.below(90) + 10);
            self.give(&id, path);
            self.give(&host, path);
            records.push(json!({"id": id, "owner": owner, "host": host, "port": port, "note": self.sentence()}));
        }
        Value::from(records).to_string()
    }

    fn log(&mut self, path: &str) -> String {
        let mut lines = Vec::new();
        for line in 0..12 {
            let text = match line {
                7 => {
                    let code = format!("E{}", self.number());
                    self.give(&code, path);
                    format!("error[{code}]: {} at {path}:{}", self.sentence(), line * 7 + 3)
                }
                _ => format!("test {}::{} ... ok", self.word(), self.word()),
            };
            lines.push(text);
        }
        lines.join("\n")
    }

    /// Adds a call with its result.
    fn step(&mut self) {
        let path = self.known_path();
        let (name, arguments, result) = match self.random.below(5) {
            0 => {
                self.edits += 1;
                let (name, value) = (format!("{}_{}", self.word(), self.word()), self.number());
                let text = format!("fn {name}() -> u32 {{\n    {value} + {}\n}}\n", self.number());
                self.give(&name, &path);
                let arguments = json!({"path": path, "old_text": "todo", "new_text": text});
                ("edit_file", arguments, format!("Wrote {path}."))
            }
            1 => ("read_file", json!({"path": path}), self.file(&path)),
            2 => ("query", json!({"table": path}), self.records(&path)),
            _ => {
                let command = format!("cargo test --lib {}", self.word());
                ("run", json!({"command": command}), self.log(&path))
            }
        };
        self.calls += 1;
        let id = format!("call_{:04}", self.calls);
        let content = format!("{} {}", self.citation(), self.sentence());
        self.messages.push(json!({
            "role": "assistant",
            "content": content,
            "tool_calls": [{
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": arguments.to_string()},
            }],
        }));
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }

    fn agent(&mut self, steps: usize) {
        let task = (0..4).map(|_| self.sentence()).collect::<Vec<_>>().join(" ");
        self.say(
            "system",
            "You are a coding agent. Use the tools. Keep the tests green. Answer briefly.",
        );
        self.say("user", &format!("Please finish the migration. {task}"));
        for step in 1..=steps {
            self.step();
            if step % STEPS_PER_USER == 0 {
                let text = format!("{} I decide: {}", self.citation(), self.sentence());
                self.say("assistant", &text);
                let (word, value) = (self.word(), self.number());
                let value = format!("{word}_{value}");
                self.give(&value, "the user");
                self.say("user", &format!("Good. Use the name {value} for it, and go on."));
            }
        }
        let last = self.citation();
        self.say("assistant", &last);
    }

    fn chat(&mut self, exchanges: usize) {
        self.say("system", "You help a family to plan a move.");
        for _ in 0..exchanges {
            let (name, value, word) = (*self.random.pick(&NAMES), self.number(), self.word());
            let value = format!("{word}-{value}");
            self.give(&value, name);
            let opening = (0..3).map(|_| self.sentence()).collect::<Vec<_>>().join(" ");
            self.say("user", &format!("{opening} By the way, {name} gave me the number {value}."));
            let more = (0..8).map(|_| self.sentence()).collect::<Vec<_>>().join(" ");
            let text = format!("{} {more}", self.citation());
            self.say("assistant", &text);
        }
    }

    /// Returns the places before which a user message can stand: the request's ends.
    fn places(&self) -> Vec<usize> {
        let role = |index: usize| self.messages[index]["role"].as_str();
        (2..self.messages.len())
            .filter(|index| {
                role(*index) == Some("assistant")
                    && matches!(role(index - 1), Some("user" | "tool"))
            })
            .collect()
    }

    /// Inserts texts of the user before the messages at these places, given in order. Returns their
    /// places in the result.
    fn insert(&mut self, texts: &[(usize, String)]) -> Vec<usize> {
        let mut found = Vec::new();
        for (added, (place, text)) in texts.iter().enumerate() {
            self.messages.insert(place + added, json!({"role": "user", "content": text}));
            found.push(place + added);
        }
        found
    }

    fn finish(self, id: &str, source: &str, tools: Option<Value>, planted: Planted) -> Case {
        let mut line = json!({"id": id, "source": source, "messages": self.messages});
        if let Some(tools) = tools {
            line["tools"] = tools;
        }
        let mut case = Case::read(&line.to_string(), 1).expect("a generated conversation is sound");
        case.planted = planted;
        case
    }
}

fn tools() -> Value {
    let tool = |name: &str, members: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            members.iter().map(|own| ((*own).to_owned(), json!({"type": "string"}))).collect();
        json!({"type": "function", "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties},
        }})
    };
    json!([
        tool("read_file", &["path"]),
        tool("edit_file", &["path", "old_text", "new_text"]),
        tool("query", &["table"]),
        tool("run", &["command"]),
    ])
}

/// Returns conversations for the columns of retention: `count` agent runs, and as many chats.
pub fn conversations(seed: u64, count: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for number in 0..count as u64 {
        let mut draft = Draft::new(seed, 10 + number);
        draft.agent(AGENT_STEPS);
        let id = format!("agent-{number}");
        cases.push(draft.finish(&id, "generated/agent", Some(tools()), Planted::Nothing));
        let mut draft = Draft::new(seed, 1_000 + number);
        draft.chat(CHAT_EXCHANGES);
        cases.push(draft.finish(
            &format!("chat-{number}"),
            "generated/chat",
            None,
            Planted::Nothing,
        ));
    }
    cases
}

/// Returns rules in the words of users, each with a value that occurs nowhere else.
fn rules(random: &mut Random) -> Vec<(String, String)> {
    let mut rules = Vec::new();
    for depth in 0..DEPTHS {
        let value = format!("{}_{}", random.pick(&WORDS), 100_000 + random.next() % 900_000);
        let text = match depth % 5 {
            0 => format!("Never edit config/{value}.toml, because a script writes it."),
            1 => format!("Always run make {value} before you commit."),
            2 => format!("Do not use the client {value} in new code."),
            3 => format!("You must ask me before you delete anything in data/{value}."),
            _ => format!("All amounts must be in cents, in the column {value}."),
        };
        rules.push((text, value));
    }
    rules
}

/// Returns an agent run with a rule of the user at each tenth of its length; `crowded` adds messages
/// full of other rule-like sentences around them.
pub fn ruled(seed: u64, crowded: bool) -> Case {
    let mut draft = Draft::new(seed, 5_000);
    draft.agent(AGENT_STEPS);
    let places = draft.places();
    let mut texts = Vec::new();
    let rules = rules(&mut draft.random);
    for (depth, (rule, _)) in rules.iter().enumerate() {
        let place = places[depth * places.len() / (DEPTHS + 1)];
        // Every other rule stands in the middle of a longer message.
        let text = match depth % 2 {
            0 => format!("One more thing. {rule} Now please go on."),
            _ => {
                let mut around = || (0..6).map(|_| draft.sentence()).collect::<Vec<_>>().join(" ");
                format!("{}\n\n{rule}\n\n{}", around(), around())
            }
        };
        texts.push((place, text));
    }
    let found = draft.insert(&texts);
    let mut plants: Vec<Plant> = (0..DEPTHS)
        .map(|depth| Plant::new(found[depth], &rules[depth].0, &rules[depth].1, depth))
        .collect();
    if crowded {
        crowd(&mut draft, &mut plants);
    }
    let id = if crowded { "rules-crowded" } else { "rules" };
    draft.finish(id, "planted/rules", Some(tools()), Planted::Rules { plants, is_crowded: crowded })
}

/// Inserts messages of the user that quote many rule-like sentences, and moves the plants along.
fn crowd(draft: &mut Draft, plants: &mut [Plant]) {
    let places = draft.places();
    let mut texts = Vec::new();
    for message in 0..CROWD_MESSAGES {
        let place = places[(message + 1) * places.len() / (CROWD_MESSAGES + 2)];
        let mut lines = vec!["This is the page that I found:".to_owned()];
        for sentence in 0..CROWD_SENTENCES {
            let (first, second) = (draft.word(), draft.word());
            lines.push(match sentence % 3 {
                0 => format!("You must always {first} the {second} before anything else."),
                1 => format!("Never {first} a {second} that has no {}.", draft.word()),
                _ => format!("Important: do not {first} the {second} again."),
            });
        }
        texts.push((place, lines.join("\n")));
    }
    for plant in plants.iter_mut() {
        plant.message += texts.iter().filter(|(place, _)| *place <= plant.message).count();
    }
    draft.insert(&texts);
}

/// Returns an agent run with facts, and one rule for every two of them, in its first part.
pub fn decaying(seed: u64) -> Case {
    let mut draft = Draft::new(seed, 6_000);
    draft.agent(AGENT_STEPS * 2);
    let places = draft.places();
    let early = &places[..places.len() * FACTS_PERCENT / 100];
    let mut texts = Vec::new();
    let mut facts = Vec::new();
    let rules = rules(&mut draft.random);
    for number in 0..FACTS {
        let (word, name) = (draft.word(), *draft.random.pick(&NAMES));
        let value = match number % 4 {
            0 => format!("{word}-{}.example.org", draft.number()),
            1 => format!("{}", 1_000_000 + draft.number()),
            2 => format!("{word}/{}.yaml", draft.number()),
            _ => format!("inv_{}", draft.number()),
        };
        let fact = match number % 4 {
            0 => format!("The staging server of {name} is {value}."),
            1 => format!("The contract of {name} has the number {value}."),
            2 => format!("The settings of the {word} are in {value}."),
            _ => format!("{name} paid with the invoice {value}."),
        };
        let rule = (number % 2 == 0).then(|| rules[number / 2].0.as_str());
        let place = early[number * early.len() / FACTS];
        let text = format!("For your information: {fact} {} Go on.", rule.unwrap_or_default());
        texts.push((place, text));
        facts.push((fact, value));
    }
    let found = draft.insert(&texts);
    let plants = (0..FACTS).map(|own| Plant::new(found[own], &facts[own].0, &facts[own].1, own));
    let facts = plants.collect();
    let rules =
        (0..DEPTHS).map(|own| Plant::new(found[own * 2], &rules[own].0, &rules[own].1, own));
    let rules = rules.collect();
    draft.finish("decay", "planted/facts", Some(tools()), Planted::Facts { facts, rules })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_makes_the_conversations() {
        let raws = |seed| -> Vec<String> {
            let mut cases = conversations(seed, 1);
            cases.extend([ruled(seed, false), ruled(seed, true), decaying(seed)]);
            let messages = cases.iter().flat_map(|case| &case.conversation.messages);
            messages.map(|message| message.raw.to_string()).collect()
        };
        assert_eq!(raws(1), raws(1));
        assert_ne!(raws(1), raws(2));
    }

    #[test]
    fn plants_are_where_they_say() {
        for case in [ruled(3, false), ruled(3, true), decaying(3)] {
            let plants: Vec<&Plant> = match &case.planted {
                Planted::Nothing => Vec::new(),
                Planted::Rules { plants, .. } => plants.iter().collect(),
                Planted::Facts { facts, rules } => facts.iter().chain(rules).collect(),
            };
            assert!(plants.len() >= DEPTHS);
            for plant in plants {
                let holding = |message: &weir_eval::conversation::Message| {
                    message.texts.iter().any(|text| text.text.contains(&plant.text))
                };
                let messages = &case.conversation.messages;
                let found: Vec<usize> =
                    (0..messages.len()).filter(|index| holding(&messages[*index])).collect();
                assert_eq!(found, [plant.message], "{}", plant.text);
                assert!(plant.text.contains(&plant.value));
            }
        }
    }

    #[test]
    fn facts_stand_before_the_limit_of_their_case_is_reached() {
        let case = decaying(1);
        let Planted::Facts { facts, .. } = &case.planted else { panic!("it has facts") };
        let last = facts.iter().map(|fact| fact.message).max().expect("facts");
        let conversation = &case.conversation;
        let part = conversation.full_tokens(last + 1) * 100 / conversation.last_request_tokens();
        assert!(part < 22, "{part} %");
    }
}
