//! Tests of facts planted early in a conversation: each must be sent after five compactions, in the words
//! that it was said in.

use serde_json::{Value, json};

use crate::plan::{NoSummaries, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

const LIMIT_TOKENS: u64 = 8000;
const COMPACTIONS: u32 = 5;
/// More rounds than five compactions take.
const MAX_ROUNDS: usize = 200;

/// Conversation that grows.
struct Talk {
    messages: Vec<Value>,
    calls: usize,
}

impl Talk {
    fn new() -> Self {
        let messages = vec![
            json!({"role": "system", "content": "You work on a weir."}),
            json!({"role": "user", "content": "Which part of the weir leaks?"}),
        ];
        Self { messages, calls: 0 }
    }

    fn say(&mut self, role: &str, text: &str) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    fn call(&mut self, tool: &str, arguments: &Value, result: &str) {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        let call = json!({"id": id, "type": "function", "function": function});
        self.messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }

    /// Adds a round of work without anything that must survive.
    fn work(&mut self, nth: usize) {
        let number = |times: usize, end: usize| (nth * 7919 + times * 104_729) % end;
        let line = |own: usize| {
            let (hour, level) = (number(own, 24), number(own + 1, 900));
            format!(
                "gauge {nth:04x} {hour:02}:00 level {level} cm, flow {} l/s",
                number(own + 2, 700)
            )
        };
        let lines: Vec<String> = (0..14).map(line).collect();
        self.call("read", &json!({"path": format!("logs/{nth:04x}.log")}), &lines.join("\n"));
        self.say("assistant", &format!("Gauge {nth:04x} is in order, I go on."));
    }

    /// Goes on until five compactions are behind it; returns the texts that are sent.
    fn sent(mut self) -> String {
        for nth in 0..MAX_ROUNDS {
            self.work(nth);
            if nth % 8 != 7 {
                continue;
            }
            let body = json!({"model": "gpt-4o", "messages": self.messages}).to_string();
            let request = Protocol::Chat.read(body.as_bytes(), 10_000).expect("a request");
            let mut options = PlanOptions::new("gpt-4o", Encoding::O200kBase, LIMIT_TOKENS);
            options.policy.notes_apart = true;
            let plan = plan(&request, &options, &NoSummaries).expect("it fits");
            if plan.compactions >= COMPACTIONS {
                let sent: Value =
                    serde_json::from_str(plan.body.as_deref().expect("a body")).expect("JSON");
                let messages = sent["messages"].as_array().expect("a list").iter();
                let texts = messages.filter_map(|message| message["content"].as_str());
                return texts.collect::<Vec<_>>().join("\n");
            }
        }
        panic!("too few compactions in {MAX_ROUNDS} rounds");
    }
}

/// Checks that at least `least` of the planted texts are sent.
fn check(kind: &str, least: usize, planted: &[(String, bool)]) {
    let kept = planted.iter().filter(|(_, is_kept)| *is_kept).count();
    let lost: Vec<&str> =
        planted.iter().filter(|own| !own.1).map(|(text, _)| text.as_str()).collect();
    assert!(kept >= least, "{kind}: {kept} of {}, {lost:?}", planted.len());
}

/// Ends of failed results, with the part of each that says what is wrong.
const ERRORS: [(&str, &str); 20] = [
    (
        "src/gate.ts(12,5): error TS2322: Type 'string' is not assignable to type 'Gate91'.",
        "TS2322: Type 'string' is not assignable to type 'Gate91'.",
    ),
    (
        "npm ERR! code ELIFECYCLE\nnpm ERR! gate_91@1.0.0 build: `vite build`",
        "npm ERR! gate_91@1.0.0 build",
    ),
    (
        "FAIL src/gate_91.test.ts\n  ● opens › at noon\n\n    expect(received).toBe(expected)\n\n    Expected: 791\n    Received: 891",
        "● opens › at noon",
    ),
    (
        "<tool_use_error>File gate_91.rs has not been read yet. Read it first.</tool_use_error>",
        "File gate_91.rs has not been read yet.",
    ),
    ("building gate_91\nSegmentation fault (core dumped)", "Segmentation fault"),
    (
        "/usr/bin/ld: main.o: undefined reference to `open_gate_91'\ncollect2: error: ld returned 1 exit status",
        "undefined reference to `open_gate_91'",
    ),
    (
        "Get-Item : Cannot find path 'C:\\gate_91' because it does not exist.\n    + CategoryInfo          : ObjectNotFound",
        "Cannot find path 'C:\\gate_91'",
    ),
    (
        "Das Tor wird gebaut\nDatei gate_91.c wurde nirgends gesehen\nAbbruch\nExit code 2",
        "Datei gate_91.c wurde nirgends gesehen",
    ),
    ("bash: gate_91 : commande introuvable\nexit code: 127", "gate_91 : commande introuvable"),
    ("make: *** [Makefile:3: gate_91] Ошибка 2", "[Makefile:3: gate_91] Ошибка 2"),
    ("开始构建\n找不到文件 gate_91\n[exit code 1]", "找不到文件 gate_91"),
    (
        "Traceback (most recent call last):\n  File \"gate.py\", line 7, in open\n    raise GateShut(91)\ngate.GateShut: 91 is shut",
        "gate.GateShut: 91 is shut",
    ),
    (
        "--- FAIL: TestGate91 (0.00s)\n    gate_test.go:12: got 791, want 891\nFAIL\nexit status 1",
        "--- FAIL: TestGate91",
    ),
    (
        "error[E0432]: unresolved import `gate::open_91`\n --> src/main.rs:3:5",
        "unresolved import `gate::open_91`",
    ),
    (
        "Exception in thread \"main\" java.lang.IllegalStateException: gate 91 is shut\n\tat Gate.open(Gate.java:7)",
        "IllegalStateException: gate 91 is shut",
    ),
    (
        "  3:5  error  'gate_91' is not defined  no-undef\n\n✖ 1 problem (1 error, 0 warnings)",
        "'gate_91' is not defined",
    ),
    (
        "{\"output\":\"Bygger porten\\nPort 91 sitter fast\\n\",\"metadata\":{\"exit_code\":3,\"duration_seconds\":0.4}}",
        "Port 91 sitter fast",
    ),
    (
        "Chunk ID: a1\nWall time: 0.2 seconds\nProcess exited with code 4\nOutput:\nportti 91 on jumissa",
        "portti 91 on jumissa",
    ),
    (
        "<returncode>2</returncode>\n<output>\nbrána 91 je zaseknutá\n</output>",
        "brána 91 je zaseknutá",
    ),
    ("ゲート91が開きません\nCommand failed with exit code 5", "ゲート91が開きません"),
];

#[test]
fn unresolved_errors_of_any_program_survive() {
    let planted: Vec<(String, bool)> = ERRORS
        .iter()
        .map(|(result, wanted)| {
            let mut talk = Talk::new();
            (0..4).for_each(|nth| talk.work(900 + nth));
            let lines = (0..30).map(|own| format!("step {own} of the work is done now\n"));
            let lines = lines.collect::<String>();
            let result = match result.split_once("Output:\n") {
                Some((head, output)) => format!("{head}Output:\n{lines}{output}"),
                None if result.starts_with(['<', '{']) => (*result).to_owned(),
                None => format!("{lines}{result}"),
            };
            talk.call("bash", &json!({"command": "make gate_91"}), &result);
            talk.say("assistant", "I look at the gauges first.");
            (result.lines().last().unwrap_or_default().to_owned(), talk.sent().contains(wanted))
        })
        .collect();
    check("errors", 19, &planted);
}

const FILES: [&str; 18] = [
    "CLAUDE.md",
    "AGENTS.md",
    "GEMINI.md",
    "QWEN.md",
    ".cursorrules",
    ".cursor/rules/style.mdc",
    ".github/copilot-instructions.md",
    ".github/instructions/rust.instructions.md",
    "CONTRIBUTING.md",
    "docs/CONVENTIONS.md",
    "skills/pdf/SKILL.md",
    ".clinerules",
    ".clinerules/01-style.md",
    ".windsurfrules",
    ".junie/guidelines.md",
    "docs/coding-guidelines.md",
    ".roo/rules-code/a.md",
    ".amazonq/rules/style.md",
];

#[test]
fn instruction_files_survive_by_what_they_are() {
    let planted: Vec<(String, bool)> = FILES
        .iter()
        .map(|path| {
            let mut talk = Talk::new();
            (0..2).for_each(|nth| talk.work(900 + nth));
            let lines = "- The gates are described in the book of the weir.\n".repeat(12);
            let file = format!("# How we work\n{lines}- Always run `just lint-77` before a commit.\n- Use the logger of src/log_77.rs.\n");
            talk.call("read_file", &json!({"path": format!("/home/app/{path}")}), &file);
            talk.say("assistant", "I have read it.");
            ((*path).to_owned(), talk.sent().contains("Always run `just lint-77` before a commit."))
        })
        .collect();
    check("instruction files", 17, &planted);
}

/// What a user prefers, and corrects, in eight languages, among what else a user says.
const SOFT: [(&str, [&str; 3], [&str; 4]); 8] = [
    (
        "English",
        [
            "I'd rather have short functions than clever ones.",
            "Blue is easier on my eyes than green in the charts.",
            "No, I meant the second lock, the one by the mill.",
        ],
        [
            "Yesterday we walked along the river and looked at the old gates.",
            "The water was high after the rain of last week.",
            "My colleague thinks that the pump is too loud at night.",
            "Below is what the control room showed this morning.",
        ],
    ),
    (
        "German",
        [
            "Mir sind kurze Funktionen lieber als schlaue.",
            "Blau ist in den Diagrammen angenehmer als Grün.",
            "Nein, ich meinte die zweite Schleuse, die an der Mühle.",
        ],
        [
            "Gestern sind wir den Fluss entlang gegangen und haben die alten Tore angesehen.",
            "Das Wasser stand nach dem Regen der letzten Woche hoch.",
            "Mein Kollege findet die Pumpe nachts zu laut.",
            "Unten steht, was die Warte heute früh angezeigt hat.",
        ],
    ),
    (
        "French",
        [
            "J'aime mieux des fonctions courtes que des astucieuses.",
            "Le bleu est plus doux que le vert dans les graphiques.",
            "Non, je parlais de la deuxième écluse, celle du moulin.",
        ],
        [
            "Hier nous avons marché le long de la rivière et regardé les vieilles portes.",
            "L'eau était haute après la pluie de la semaine passée.",
            "Mon collègue trouve la pompe trop bruyante la nuit.",
            "Voici ce que la salle de contrôle montrait ce matin.",
        ],
    ),
    (
        "Spanish",
        [
            "Me gustan más las funciones cortas que las ingeniosas.",
            "El azul cansa menos que el verde en los gráficos.",
            "No, yo hablaba de la segunda esclusa, la del molino.",
        ],
        [
            "Ayer caminamos por el río y miramos las viejas compuertas.",
            "El agua estaba alta después de la lluvia de la semana pasada.",
            "Mi colega piensa que la bomba hace ruido por la noche.",
            "Abajo está lo que mostraba la sala de control esta mañana.",
        ],
    ),
    (
        "Russian",
        [
            "Мне больше по душе короткие функции, чем хитрые.",
            "Синий цвет на графиках приятнее зелёного.",
            "Нет, я говорил про второй шлюз, тот что у мельницы.",
        ],
        [
            "Вчера мы гуляли вдоль реки и смотрели старые ворота.",
            "Вода стояла высоко после дождей прошлой недели.",
            "Мой коллега считает, что насос ночью слишком шумит.",
            "Ниже то, что показывала диспетчерская сегодня утром.",
        ],
    ),
    (
        "Polish",
        [
            "Wolę krótkie funkcje niż sprytne sztuczki w kodzie.",
            "Niebieski na wykresach męczy mniej niż zielony.",
            "Nie, chodziło mi o drugą śluzę, tę przy młynie.",
        ],
        [
            "Wczoraj szliśmy wzdłuż rzeki i oglądaliśmy stare wrota.",
            "Woda stała wysoko po deszczach z zeszłego tygodnia.",
            "Mój kolega uważa, że pompa jest w nocy za głośna.",
            "Poniżej jest to, co pokazywała dziś rano dyspozytornia.",
        ],
    ),
    (
        "Chinese",
        [
            "比起巧妙的写法我更喜欢短小的函数。",
            "图表里蓝色比绿色看着舒服。",
            "不对，我说的是磨坊旁边的第二道闸门。",
        ],
        [
            "昨天我们沿着河边走看了看旧闸门。",
            "上周下雨之后水位一直很高。",
            "我的同事觉得水泵晚上太吵了。",
            "下面是今天早上控制室显示的内容。",
        ],
    ),
    (
        "Japanese",
        [
            "凝った書き方より短い関数のほうが好みです。",
            "グラフは緑より青のほうが見やすいです。",
            "いいえ、水車のそばの二番目の水門のことです。",
        ],
        [
            "昨日は川沿いを歩いて古い水門を見ました。",
            "先週の雨のあとで水位が高かったです。",
            "同僚は夜のポンプの音が大きいと言います。",
            "下は今朝の制御室の表示です。",
        ],
    ),
];

/// What a user pastes.
fn pasted(nth: usize) -> String {
    let line = |own: usize| {
        format!(
            "2026-03-0{} 10:{own:02}:07 INFO gate-{nth} level={} flow={}\n",
            nth % 9 + 1,
            own * 37 % 900,
            own * 53 % 700
        )
    };
    (0..16).map(line).collect()
}

#[test]
fn what_a_user_prefers_and_corrects_inside_longer_messages_survives() {
    let mut planted = Vec::new();
    for (language, wanted, others) in SOFT {
        let mut talk = Talk::new();
        (0..3).for_each(|nth| talk.work(900 + nth));
        for (nth, own) in wanted.iter().enumerate() {
            let glue = if language == "Chinese" || language == "Japanese" { "" } else { " " };
            let before = [others[nth], others[(nth + 1) % 3]].join(glue);
            let text = [before.as_str(), own, others[3]].join(glue);
            talk.say("user", &format!("{text}\n\n```\n{}```\n", pasted(nth)));
            talk.say("assistant", "Understood.");
            (0..2).for_each(|more| talk.work(800 + nth * 10 + more));
        }
        let sent = talk.sent();
        planted.extend(wanted.map(|own| (format!("{language}: {own}"), sent.contains(own))));
    }
    check("soft preferences and corrections", 20, &planted);
}

#[test]
fn rows_of_a_users_table_survive() {
    let mut planted = Vec::new();
    for (head, rows) in [
        (
            "| Lock | When it may open |\n|---|---|",
            [
                "| mill | at noon only |",
                "| harbour | after the ferry has passed |",
                "| upper | at night, by hand |",
                "| lower | as the keeper says |",
            ],
        ),
        (
            "| Feld | Bedeutung | Quelle |\n|:--|:--|:--|",
            [
                "| pegel_cm | Höhe über dem Wehr | Warte |",
                "| durchfluss | Liter je Sekunde | Pumpe 7 |",
                "| ort | Name der Schleuse | Karte |",
                "| zeit | Ortszeit, nicht UTC | Uhr am Tor |",
            ],
        ),
        (
            "Lock\tKeeper\tPhone",
            [
                "mill\tAnna Berg\t0151 7731",
                "harbour\tBo Lind\t0151 7732",
                "upper\tCleo Marsh\t0151 7733",
                "lower\tDan Wehr\t0151 7734",
            ],
        ),
        (
            "lock,keeper,colour",
            [
                "mill,Anna Berg,pale blue",
                "harbour,Bo Lind,dark green",
                "upper,Cleo Marsh,red",
                "lower,Dan Wehr,white",
            ],
        ),
        (
            "| 闸门 | 规则 |\n|---|---|",
            [
                "| 磨坊 | 只在中午打开 |",
                "| 港口 | 渡船通过之后 |",
                "| 上游 | 夜里手动操作 |",
                "| 下游 | 听管理员的 |",
            ],
        ),
    ] {
        let mut talk = Talk::new();
        (0..3).for_each(|nth| talk.work(900 + nth));
        let table = rows.join("\n");
        talk.say("user", &format!("Here is what the keepers wrote down for us.\n\n{head}\n{table}\n\nAnd this came from the control room this morning:\n\n```\n{}```\n", pasted(5)));
        talk.say("assistant", "Understood.");
        let sent = talk.sent();
        planted.extend(rows.map(|own| (own.to_owned(), sent.contains(own))));
    }
    check("rows of tables", 18, &planted);
}

/// Writes a list of tasks, as a tool and its arguments.
type Writes = fn(&[(&str, &str)]) -> (&'static str, Value);

const LISTS: [Writes; 6] = [
    |tasks| {
        let task = |(name, state): &(&str, &str)| json!({"content": name, "activeForm": format!("doing {name}"), "status": state});
        ("TodoWrite", json!({"todos": tasks.iter().map(task).collect::<Vec<_>>()}))
    },
    |tasks| {
        let task = |(name, state): &(&str, &str)| json!({"step": name, "status": state});
        (
            "update_plan",
            json!({"explanation": "The plan.", "plan": tasks.iter().map(task).collect::<Vec<_>>()}),
        )
    },
    |tasks| {
        let task = |(name, state): &(&str, &str)| json!({"title": name, "status": match *state { "completed" => "done", "pending" => "todo", own => own }, "notes": ""});
        (
            "task_tracker",
            json!({"command": "plan", "task_list": tasks.iter().map(task).collect::<Vec<_>>()}),
        )
    },
    |tasks| {
        let line = |(name, state): &(&str, &str)| {
            format!("- [{}] {name}\n", if *state == "completed" { "x" } else { " " })
        };
        (
            "write_file",
            json!({"path": "PLAN.md", "content": tasks.iter().map(line).collect::<String>()}),
        )
    },
    |tasks| {
        let line = |(name, state): &(&str, &str)| {
            format!("[{}] {name}", if *state == "completed" { "x" } else { " " })
        };
        ("todowrite", json!({"todos": tasks.iter().map(line).collect::<Vec<_>>().join("\n")}))
    },
    |tasks| {
        let task = |(nth, (name, state)): (usize, &(&str, &str))| json!({"id": nth, "title": name, "status": match *state { "completed" => "completed", "pending" => "not-started", _ => "in-progress" }});
        (
            "manage_todo_list",
            json!({"operation": "write", "todoList": tasks.iter().enumerate().map(task).collect::<Vec<_>>()}),
        )
    },
];

const TASKS: [&str; 7] = [
    "Measure the level at gate 91",
    "Grease the pump of hut 92",
    "Paint the door of hut 93 green",
    "Count the fish in pond 94",
    "Write the report for keeper Lind",
    "Replace the chain of sluice 96",
    "Ask the miller about the flood mark",
];

#[test]
fn open_tasks_survive_in_their_newest_state() {
    let mut planted = Vec::new();
    for write in LISTS {
        let mut talk = Talk::new();
        for done in 0..3 {
            (0..2).for_each(|nth| talk.work(900 + 10 * done + nth));
            let state = |nth: usize| match nth {
                _ if nth < done => "completed",
                _ if nth == done => "in_progress",
                _ => "pending",
            };
            let tasks: Vec<(&str, &str)> =
                TASKS.iter().enumerate().map(|(nth, name)| (*name, state(nth))).collect();
            let (tool, arguments) = write(&tasks);
            talk.call(tool, &arguments, "ok");
        }
        let sent = talk.sent();
        planted.extend(
            TASKS[2..].iter().map(|own| (format!("{}: {own}", write(&[]).0), sent.contains(own))),
        );
        let is_stale = |own: &str| {
            let mut shown =
                sent.lines().filter(|line| line.contains(own) && !line.starts_with("also: "));
            shown.any(|line| {
                ["in_progress", "pending", "[ ]"].iter().any(|word| line.contains(word))
            })
        };
        planted.extend(
            TASKS[..2]
                .iter()
                .map(|own| (format!("stale in {}: {own}", write(&[]).0), !is_stale(own))),
        );
    }
    check("open tasks", 41, &planted);
}
