//! Survival: rules planted at every depth of a conversation are sent word for word after five and ten
//! compactions, in all protocols, and next to text that is full of rules of others. Also what else must
//! survive: open tasks, unresolved errors, last edits, system text, pins and the newest user turn.

use std::fmt::Write as _;

use serde_json::{Value, json};
use weir_engine::wire::Protocol;

use super::harness::Weir;
use super::planted::Dice;

const LIMIT_TOKENS: u64 = 8000;
/// Number of rules planted in a conversation, and of rounds between two of them.
const RULES: usize = 12;
const ROUNDS_BETWEEN: usize = 6;
/// More rounds than ten compactions take.
const MAX_ROUNDS: usize = 600;

const PROTOCOLS: [Protocol; 3] = [Protocol::Chat, Protocol::Responses, Protocol::Messages];

/// Part of a conversation, written in the form of each protocol.
enum Part {
    System(String),
    User(String),
    Assistant(String),
    /// Tool, arguments and result.
    Call(&'static str, Value, String),
}

/// Conversation that grows.
struct Talk {
    protocol: Protocol,
    system: String,
    messages: Vec<String>,
    calls: usize,
}

impl Talk {
    fn new(protocol: Protocol) -> Self {
        let mut talk = Self { protocol, system: String::new(), messages: Vec::new(), calls: 0 };
        talk.say(Part::System("You read logs of a river.".to_owned()));
        talk.say(Part::User("Which part of the weir leaks?".to_owned()));
        talk
    }

    fn say(&mut self, part: Part) {
        match part {
            Part::System(text) if self.protocol == Protocol::Messages => self.system = text,
            Part::System(text) => self.text("system", &text),
            Part::User(text) => self.text("user", &text),
            Part::Assistant(text) => self.text("assistant", &text),
            Part::Call(tool, arguments, result) => self.call(tool, &arguments, &result),
        }
    }

    fn push(&mut self, message: &Value) {
        self.messages.push(message.to_string());
    }

    fn text(&mut self, role: &str, text: &str) {
        self.push(&json!({"role": role, "content": text}));
    }

    fn call(&mut self, tool: &str, arguments: &Value, result: &str) {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        match self.protocol {
            Protocol::Responses => {
                self.push(&json!({"type": "function_call", "call_id": id, "name": tool,
                    "arguments": arguments.to_string()}));
                self.push(
                    &json!({"type": "function_call_output", "call_id": id, "output": result}),
                );
            }
            Protocol::Messages => {
                let call = json!({"type": "tool_use", "id": id, "name": tool, "input": arguments});
                self.push(&json!({"role": "assistant", "content": [call]}));
                let result = json!({"type": "tool_result", "tool_use_id": id, "content": result});
                self.push(&json!({"role": "user", "content": [result]}));
            }
            Protocol::Chat => {
                let function = json!({"name": tool, "arguments": arguments.to_string()});
                let call = json!({"id": id, "type": "function", "function": function});
                self.push(&json!({"role": "assistant", "content": null, "tool_calls": [call]}));
                self.push(&json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
        }
    }

    /// Adds a round of work that says nothing that must survive.
    fn work(&mut self, dice: &mut Dice) {
        let part = format!("{:04x}", dice.below(0x1_0000));
        let reading = |dice: &mut Dice| {
            let (hour, level) = (dice.below(24), dice.below(900));
            format!("gauge {part} {hour:02}:00 level {level} cm, flow {} l/s", dice.below(700))
        };
        let lines: Vec<String> = (0..14).map(|_| reading(dice)).collect();
        self.say(Part::Call("read", json!({"path": format!("logs/{part}.log")}), lines.join("\n")));
        self.say(Part::Assistant(format!("Gauge {part} is in order, I go on.")));
    }

    fn body(&self) -> String {
        let messages = self.messages.join(",");
        match self.protocol {
            Protocol::Chat => format!(r#"{{"model":"gpt-4o","messages":[{messages}]}}"#),
            Protocol::Responses => format!(r#"{{"model":"gpt-4o","input":[{messages}]}}"#),
            Protocol::Messages => format!(
                r#"{{"model":"gpt-4o","max_tokens":1000,"system":{},"messages":[{messages}]}}"#,
                json!(self.system)
            ),
        }
    }

    /// Plans the conversation so far; returns the sent body and the number of compactions.
    fn sent(&self, weir: &Weir, limit_tokens: u64) -> (String, u32) {
        let body = self.body();
        let planned = weir.plan_as(self.protocol, &body, limit_tokens).expect("it fits");
        let sent = planned.body.as_deref().unwrap_or(body.as_bytes());
        (String::from_utf8(sent.to_vec()).expect("text"), planned.compactions)
    }
}

/// Returns a text as it stands in JSON, without quotes.
fn in_json(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A rule among words that fill its message, so that the message does not stay whole.
fn rule(dice: &mut Dice, nth: usize) -> (String, String) {
    let code = format!("{:05x}", dice.below(0x10_0000));
    let rule = match nth % 6 {
        0 => format!("Never restart controller GC-{code} without asking me."),
        1 => format!("Always run make check-{code} before you commit."),
        2 => format!("You must not edit the files in vendor/{code}."),
        3 => format!("Ändere niemals die Datei netz_{code}.toml."),
        4 => format!("不要修改文件 {code}.rs。"),
        _ => format!("Please don't touch the table gauges_{code}."),
    };
    let mut text = String::new();
    for line in 0..18 {
        let _ = writeln!(text, "We looked at stretch {} of the river on a quiet day.", line + nth);
        if line == nth % 15 {
            let _ = writeln!(text, "{rule}");
        }
    }
    (text, rule)
}

/// Runs a conversation with planted rules; `crowd` adds text around them. Returns the share of the rules
/// that are sent after each compaction, the lowest first, and the last body.
fn lowest_share(
    protocol: Protocol,
    compactions: u32,
    seed: u64,
    crowd: impl Fn(&mut Talk, usize),
) -> (f64, String) {
    lowest_share_within(LIMIT_TOKENS, protocol, compactions, seed, crowd)
}

fn lowest_share_within(
    limit_tokens: u64,
    protocol: Protocol,
    compactions: u32,
    seed: u64,
    crowd: impl Fn(&mut Talk, usize),
) -> (f64, String) {
    let (weir, mut dice, mut talk) = (Weir::new(), Dice::new(seed), Talk::new(protocol));
    let (mut rules, mut lowest) = (Vec::new(), 1.0_f64);
    for number in 0..MAX_ROUNDS {
        if number % ROUNDS_BETWEEN == 0 && rules.len() < RULES {
            let (text, rule) = rule(&mut dice, rules.len());
            talk.say(Part::User(text));
            talk.say(Part::Assistant("Understood.".to_owned()));
            rules.push(rule);
        }
        crowd(&mut talk, number);
        talk.work(&mut dice);
        talk.say(Part::User("Go on with the next one.".to_owned()));
        let (sent, done) = talk.sent(&weir, limit_tokens);
        talk.say(Part::Assistant("I go on.".to_owned()));
        let kept = rules.iter().filter(|rule| sent.contains(&in_json(rule))).count();
        lowest = lowest.min(kept as f64 / rules.len().max(1) as f64);
        if done >= compactions && rules.len() == RULES {
            return (lowest, sent);
        }
    }
    panic!("too few compactions in {MAX_ROUNDS} rounds");
}

#[test]
fn planted_rules_survive_five_and_ten_compactions() {
    for protocol in PROTOCOLS {
        for (compactions, seed) in [(5, 1), (10, 2), (10, 3)] {
            let (lowest, _) = lowest_share(protocol, compactions, seed, |_, _| {});
            assert_eq!(lowest, 1.0, "{protocol:?}, {compactions} compactions, seed {seed}");
        }
    }
}

#[test]
fn planted_rules_survive_within_a_small_limit() {
    for protocol in PROTOCOLS {
        for limit_tokens in [2600, 3500] {
            let (lowest, _) = lowest_share_within(limit_tokens, protocol, 5, 1, |_, _| {});
            assert_eq!(lowest, 1.0, "{protocol:?}, {limit_tokens} tokens");
        }
    }
}

/// Lines that claim to be rules.
fn crowding_lines(bytes: usize, mark: &str) -> String {
    let mut text = String::new();
    let mut line = 0;
    while text.len() < bytes {
        let _ = writeln!(text, "NEVER use the {mark} of gate {line} and ALWAYS obey line {line}.");
        line += 1;
    }
    text
}

#[test]
fn crowding_text_of_a_user_takes_only_room_that_nobody_claims() {
    for (protocol, limit_tokens, bytes) in [
        (Protocol::Chat, LIMIT_TOKENS, 16_000),
        (Protocol::Responses, LIMIT_TOKENS, 16_000),
        (Protocol::Messages, LIMIT_TOKENS, 16_000),
        (Protocol::Chat, 24_000, 50_000),
    ] {
        let paste = |talk: &mut Talk, number: usize| {
            if number == 9 {
                talk.say(Part::User(crowding_lines(bytes, "paste")));
                talk.say(Part::Assistant("I have read it.".to_owned()));
            }
        };
        let (lowest, sent) = lowest_share_within(limit_tokens, protocol, 5, 4, paste);
        assert_eq!(lowest, 1.0, "{protocol:?}");
        let claimed = sent.matches("NEVER use the paste").count();
        assert!(claimed > 0, "{protocol:?}: a part of it survives");
        // At most a twentieth of the limit, at about 20 tokens a line, and what its own worth earns.
        let most = limit_tokens as usize / 20 / 20 + 16;
        assert!(claimed <= most, "{protocol:?}: {claimed} lines of at most {most}");
    }
}

/// A message with many rules of its own.
fn many_rules(rules: usize) -> String {
    let rule = |nth: usize| format!("Never open gate_{nth:02}x before noon.\n");
    (0..rules).map(rule).collect()
}

#[test]
fn rules_of_one_message_have_the_room_that_nobody_else_claims() {
    for protocol in PROTOCOLS {
        let (weir, mut dice, mut talk) = (Weir::new(), Dice::new(11), Talk::new(protocol));
        talk.say(Part::Assistant("I begin.".to_owned()));
        talk.say(Part::User(many_rules(60)));
        let (mut sent, mut done) = (String::new(), 0);
        while done < 3 {
            talk.work(&mut dice);
            talk.say(Part::User("Go on with the next one.".to_owned()));
            (sent, done) = talk.sent(&weir, LIMIT_TOKENS);
            talk.say(Part::Assistant("I go on.".to_owned()));
        }
        let kept = sent.matches("Never open gate_").count();
        // A twentieth of the limit, at about twelve tokens a rule.
        assert!(kept >= 24, "{protocol:?}: {kept} rules");
    }
}

#[test]
fn room_that_one_message_has_for_now_is_free_for_later_rules() {
    for protocol in PROTOCOLS {
        for (compactions, seed) in [(3, 12), (10, 13)] {
            let early = |talk: &mut Talk, number: usize| {
                if number == 0 {
                    talk.say(Part::User(many_rules(60)));
                    talk.say(Part::Assistant("Understood.".to_owned()));
                }
            };
            let (lowest, _) = lowest_share(protocol, compactions, seed, early);
            assert_eq!(lowest, 1.0, "{protocol:?}, {compactions} compactions");
        }
    }
}

#[test]
fn results_of_tools_claim_nothing_as_rules() {
    for protocol in PROTOCOLS {
        let results = |talk: &mut Talk, number: usize| {
            let arguments = json!({"path": format!("pages/{number}.html")});
            talk.say(Part::Call("fetch", arguments, crowding_lines(1200, "result")));
        };
        let (lowest, _) = lowest_share(protocol, 10, 5, results);
        assert_eq!(lowest, 1.0, "{protocol:?}");
    }
}

#[test]
fn instruction_files_that_tools_read_survive_within_a_tighter_part() {
    for protocol in PROTOCOLS {
        let file = "# Conventions\n- Always run `just lint-77` before a commit.\n\
                    - Use the logger of src/log_77.rs.\n";
        let reads = |talk: &mut Talk, number: usize| match number {
            2 => talk.say(Part::Call("read", json!({"path": "CLAUDE.md"}), file.to_owned())),
            12 => {
                let all = crowding_lines(8000, "file");
                talk.say(Part::Call("read", json!({"path": "sub/AGENTS.md"}), all));
            }
            _ => {}
        };
        let (lowest, sent) = lowest_share(protocol, 5, 6, reads);
        assert_eq!(lowest, 1.0, "{protocol:?}");
        assert!(sent.contains("Always run `just lint-77` before a commit."), "{protocol:?}");
        assert!(sent.contains("Use the logger of src/log_77.rs."), "{protocol:?}");
        let claimed = sent.matches("NEVER use the file").count();
        assert!((1..=12).contains(&claimed), "{protocol:?}: {claimed} lines");
    }
}

#[test]
fn injected_reminders_survive() {
    let reminder = "<system-reminder>\nContents of /repo/CLAUDE.md:\n- Build: `make all-31`\n\
                    - Prefer small functions in module_31.\n</system-reminder>\n";
    for protocol in PROTOCOLS {
        let injects = |talk: &mut Talk, number: usize| {
            if number == 1 {
                let filler = "We looked at another stretch of the river.\n".repeat(20);
                talk.say(Part::User(format!("{reminder}{filler}")));
                talk.say(Part::Assistant("Understood.".to_owned()));
            }
        };
        let (lowest, sent) = lowest_share(protocol, 5, 7, injects);
        assert_eq!(lowest, 1.0, "{protocol:?}");
        for wanted in ["Build: `make all-31`", "Prefer small functions in module_31."] {
            assert!(sent.contains(wanted), "{protocol:?}: {wanted}");
        }
    }
}

#[test]
fn open_tasks_errors_and_edits_survive() {
    for protocol in PROTOCOLS {
        let acts = |talk: &mut Talk, number: usize| {
            let todos = |state: [&str; 3]| {
                let names = ["measure gate_91", "grease pump_92", "paint hut_93"];
                let pairs = names.iter().zip(state);
                let list: Vec<Value> =
                    pairs.map(|(name, state)| json!({"content": name, "status": state})).collect();
                json!({ "todos": list })
            };
            match number {
                1 => {
                    let list = todos(["pending", "pending", "pending"]);
                    talk.say(Part::Call("TodoWrite", list, "ok".to_owned()));
                }
                3 => {
                    let list = todos(["completed", "in_progress", "pending"]);
                    talk.say(Part::Call("TodoWrite", list, "ok".to_owned()));
                    let edit = json!({"path": "src/sluice_94.rs", "old_string": "open()",
                        "new_string": "open_slowly_95(gate)"});
                    talk.say(Part::Call("edit_file", edit, "The file was changed.".to_owned()));
                }
                4 => {
                    for result in ["error: gate_96 is stuck\nexit code 1", "all fine\nexit code 0"]
                    {
                        let command = json!({"command": "check gate_96"});
                        talk.say(Part::Call("bash", command, result.to_owned()));
                    }
                    let command = json!({"command": "check pump_97"});
                    let result = "pump_97 runs dry\nthread 'pump' panicked at src/pump.rs:9:5:\n\
                        assertion `left == right` failed\n  left: 980\n right: 990\nexit code 1";
                    talk.say(Part::Call("bash", command, result.to_owned()));
                }
                _ => {}
            }
        };
        let (lowest, sent) = lowest_share(protocol, 1, 8, acts);
        assert_eq!(lowest, 1.0, "{protocol:?}");
        for wanted in [
            "grease pump_92",
            "paint hut_93",
            "src/sluice_94.rs",
            "open_slowly_95(gate)",
            "panicked at src/pump.rs:9:5",
            "left: 980",
            "right: 990",
        ] {
            assert!(sent.contains(wanted), "{protocol:?}: {wanted}");
        }
    }
}

/// Tasks, errors and edits survive also if a message with many rules came first.
#[test]
fn many_rules_take_no_room_of_tasks_errors_and_edits() {
    for (protocol, seed) in PROTOCOLS.into_iter().zip(14..) {
        let (weir, mut dice, mut talk) = (Weir::new(), Dice::new(seed), Talk::new(protocol));
        talk.say(Part::Assistant("I begin.".to_owned()));
        talk.say(Part::User(many_rules(60)));
        let mut done = 0;
        for round in 0..6 {
            let list = json!({"todos": [{"content": format!("grease pump_{round}y"), "status": "pending"}]});
            talk.say(Part::Call("TodoWrite", list, "ok".to_owned()));
            let command = json!({"command": format!("sed -i s/a/b/ src/sluice_{round}y.rs")});
            talk.say(Part::Call("bash", command, String::new()));
            let command = json!({"command": format!("check pump_{round}y")});
            let result = format!("error: pump_{round}y runs dry\nexit code 1");
            talk.say(Part::Call("bash", command, result));
            let before = done;
            let mut sent = String::new();
            while done == before {
                talk.work(&mut dice);
                talk.say(Part::User("Go on with the next one.".to_owned()));
                (sent, done) = talk.sent(&weir, LIMIT_TOKENS);
                talk.say(Part::Assistant("I go on.".to_owned()));
            }
            let wanted = ["grease pump_", "src/sluice_", "error: pump_"];
            for wanted in wanted.map(|own| format!("{own}{round}y")) {
                assert!(sent.contains(&wanted), "{protocol:?}, compaction {done}: {wanted}");
            }
        }
    }
}

/// Returns a body after the next compaction.
fn compacted(talk: &mut Talk, dice: &mut Dice) -> String {
    let weir = Weir::new();
    let (_, before) = talk.sent(&weir, LIMIT_TOKENS);
    loop {
        talk.work(dice);
        let (sent, done) = talk.sent(&weir, LIMIT_TOKENS);
        if done > before {
            return sent;
        }
    }
}

#[test]
fn tasks_that_are_done_or_replaced_are_not_sent_as_open() {
    let mut shown_open = 0;
    for protocol in PROTOCOLS {
        let (mut dice, mut talk) = (Dice::new(17), Talk::new(protocol));
        let list = |states: &[(&str, &str)]| {
            let task = |(step, status): &(&str, &str)| json!({"step": step, "status": status});
            json!({"explanation": "A plan.", "plan": states.iter().map(task).collect::<Vec<Value>>()})
        };
        let mut plan = |talk: &mut Talk, states: &[(&str, &str)]| {
            talk.say(Part::Call("update_plan", list(states), "Plan updated".to_owned()));
            for _ in 0..3 {
                talk.work(&mut dice);
            }
        };
        let boxes = "- [ ] visit hut_81\n- [ ] count fish_82\n";
        talk.say(Part::Assistant(format!("I shall:\n{boxes}{}", "A quiet day. ".repeat(60))));
        plan(&mut talk, &[("dig ditch_83", "in_progress"), ("lay pipe_84", "pending")]);
        plan(&mut talk, &[("dig ditch_83", "completed"), ("lay pipe_84", "in_progress")]);
        let boxes = "- [x] visit hut_81\n- [ ] count fish_82\n- [ ] feed fish_85\n";
        talk.say(Part::Assistant(format!("Now:\n{boxes}{}", "Another quiet day. ".repeat(60))));
        let sent = compacted(&mut talk, &mut dice);
        for wanted in ["lay pipe_84", "count fish_82", "feed fish_85"] {
            assert!(sent.contains(wanted), "{protocol:?}: {wanted}");
        }
        // A list of names may still have them, without a state.
        for unwanted in ["dig ditch_83\\\"", "[ ] visit hut_81"] {
            assert!(!sent.contains(unwanted), "{protocol:?}: {unwanted}");
        }
        // An earlier note shows them as open, so a later one says that they are done.
        let mut dice = Dice::new(18);
        for _ in 0..6 {
            let states = [("lay pipe_84", "completed"), ("count fish_82", "completed")];
            talk.say(Part::Call("update_plan", list(&states), "Plan updated".to_owned()));
            let sent = compacted(&mut talk, &mut dice);
            let shows = |state: &str| {
                sent.rfind(&format!(r#"\"status\":\"{state}\",\"step\":\"lay pipe_84\""#))
            };
            shown_open += usize::from(shows("in_progress").is_some());
            assert!(
                shows("completed") >= shows("in_progress"),
                "{protocol:?}: the task looks open"
            );
        }
    }
    assert!(shown_open > 0, "no note shows it as open first");
}

#[test]
fn edits_and_errors_of_shells_and_of_agents_without_tools_survive() {
    for protocol in PROTOCOLS {
        let (mut dice, mut talk) = (Dice::new(19), Talk::new(protocol));
        let commands = [
            ("sed -i 's/shut/open_71(gate)/' src/sluice_71.rs", ""),
            ("cat > src/lock_72.rs <<'EOF'\nfn lock_slowly_72() {}\nEOF", ""),
            ("tee docs/lock_73.md <<EOF\nTurn it by hand_73.\nEOF", "Turn it by hand_73."),
            (
                "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: src/pump_74.rs\n@@\n\
              -a\n+fn pump_slowly_74() {}\n*** End Patch\nEOF",
                "Done!",
            ),
        ];
        for (command, result) in commands {
            talk.say(Part::Call("bash", json!({"command": command}), result.to_owned()));
            talk.say(Part::Assistant("I go on.".to_owned()));
        }
        let action = |command: &str| format!("I look at the river now.\n```bash\n{command}\n```");
        let output = |code: u32, text: &str| {
            let lines = "the water is quiet\n".repeat(60);
            format!("<returncode>{code}</returncode>\n<output>\n{lines}{text}\n</output>")
        };
        for (command, code, text) in [
            ("check gate_75", 1, "error: gate_75 is stuck"),
            ("check gate_75", 0, "all fine"),
            ("check pump_76", 1, "error: pump_76 runs dry at 40 %"),
            ("echo 'pump slowly_77' > notes/pump_77.txt", 0, ""),
        ] {
            talk.say(Part::Assistant(action(command)));
            talk.say(Part::User(output(code, text)));
        }
        let sent = compacted(&mut talk, &mut dice);
        for wanted in [
            "open_71(gate)",
            "src/sluice_71.rs",
            "src/lock_72.rs",
            "fn lock_slowly_72()",
            "docs/lock_73.md",
            "src/pump_74.rs",
            "fn pump_slowly_74()",
            "check pump_76",
            "error: pump_76 runs dry at 40 %",
            "notes/pump_77.txt",
        ] {
            assert!(sent.contains(wanted), "{protocol:?}: {wanted}");
        }
    }
}

#[test]
fn system_text_pins_and_the_newest_turn_stay() {
    let (weir, mut dice) = (Weir::new(), Dice::new(9));
    let mut talk = Talk::new(Protocol::Chat);
    let pinned =
        json!({"role": "user", "content": "The key lies under stone 41.", "weir": {"pin": true}});
    talk.push(&pinned);
    talk.say(Part::Assistant("Noted.".to_owned()));
    for _ in 0..160 {
        talk.work(&mut dice);
    }
    talk.say(Part::User("And where is the key?".to_owned()));
    let (sent, compactions) = talk.sent(&weir, LIMIT_TOKENS);
    assert!(compactions >= 5, "{compactions}");
    for wanted in ["You read logs of a river.", "under stone 41.", "And where is the key?"] {
        assert!(sent.contains(wanted), "{wanted}");
    }
}
