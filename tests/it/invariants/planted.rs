//! Long dialogues with planted answers, generated from a seed: facts of several kinds among small
//! talk that shares their names, places, prices and words, and the questions that ask for them.

mod words;

use std::fmt::Write as _;

use words::*;

/// Deterministic random choices.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn shuffled<'a>(&mut self, list: &[&'a str]) -> Vec<&'a str> {
        let mut list = list.to_vec();
        for index in (1..list.len()).rev() {
            list.swap(index, self.below(index + 1));
        }
        list
    }
}

/// Kinds of questions, by the location of their answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One user message contains it, partly in the question's words.
    Said,
    /// The same, among many numbers, days and prices of the same things.
    Number,
    /// The assistant said it in answer to a question of the user.
    Advised,
    /// The user said it in answer to a question of the assistant.
    Answered,
    /// Two messages hold a part of the answer each.
    Twice,
    /// One message names the person, another holds the requested fact about them.
    TwoHops,
}

pub const KINDS: [Kind; 6] =
    [Kind::Said, Kind::Number, Kind::Advised, Kind::Answered, Kind::Twice, Kind::TwoHops];

/// Question with the sentences that answer it, as they occur in the dialogue.
pub struct Planted {
    pub kind: Kind,
    pub question: String,
    pub evidence: Vec<String>,
}

/// Surroundings of the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Without tools.
    Talk,
    /// The assistant looks things up now and then, but not lately.
    ToolsFurtherUp,
    /// The same, and right before the end.
    ToolsShortlyBefore,
}

/// Dialogue that ends in a message of the assistant.
pub struct Dialogue {
    /// Messages as JSON, in order.
    messages: Vec<String>,
    pub planted: Vec<Planted>,
}

/// Words that end a dialogue with the user as its last speaker.
const LAST_OF_USER: &str = "Right, I have put the kettle on and I am back at the table.";

impl Dialogue {
    /// Builds the request in which `question` follows the dialogue, whose last speaker is the user
    /// or the assistant.
    pub fn body(&self, question: &str, is_behind_user: bool) -> String {
        let mut messages = self.messages.join(",");
        for text in is_behind_user.then_some(LAST_OF_USER).into_iter().chain([question]) {
            messages.push(',');
            messages.push_str(&message("user", text));
        }
        format!(r#"{{"model":"gpt-4o","messages":[{messages}]}}"#)
    }

    /// Generates the dialogue of this seed.
    pub fn new(seed: u64, setting: Setting) -> Self {
        let mut dice = Dice(seed);
        let (planted, exchanges) = plant(&mut dice);
        let mut maker = Maker { dice, setting, messages: Vec::new(), calls: 0 };
        maker.messages.push(message("system", "You are a friendly companion. Be brief."));
        maker
            .messages
            .push(message("user", "Hello again, I have a long evening ahead. Talk to me."));
        maker.messages.push(message("assistant", "Gladly. How was your week?"));
        let places = maker.places(exchanges.len());
        let mut planted_exchanges = exchanges.into_iter().zip(places).peekable();
        for number in 0..EXCHANGES {
            match planted_exchanges.next_if(|(_, place)| *place == number) {
                Some((exchange, _)) => maker.say(exchange, number),
                None => {
                    let exchange = small_talk(&mut maker.dice);
                    maker.say(exchange, number);
                }
            }
        }
        Self { messages: maker.messages, planted }
    }
}

/// Number of exchanges in a dialogue; the first two thirds contain the facts.
const EXCHANGES: usize = 170;
/// One in this many exchanges uses a tool, if tools are used at all.
const TOOL_EVERY: usize = 9;

/// Alternating messages, the user's first and the assistant's last; an empty answer is filled in.
type Exchange = Vec<String>;

struct Maker {
    dice: Dice,
    setting: Setting,
    messages: Vec<String>,
    calls: usize,
}

impl Maker {
    /// Picks different exchanges for this many facts, in order.
    fn places(&mut self, count: usize) -> Vec<usize> {
        let mut places = std::collections::BTreeSet::new();
        while places.len() < count {
            places.insert(1 + self.dice.below(EXCHANGES * 2 / 3));
        }
        places.into_iter().collect()
    }

    fn say(&mut self, exchange: Exchange, number: usize) {
        let is_late = number + 6 > EXCHANGES;
        let has_tool = match self.setting {
            Setting::Talk => false,
            Setting::ToolsFurtherUp => number % TOOL_EVERY == 4 && !is_late,
            Setting::ToolsShortlyBefore => number % TOOL_EVERY == 4 || number + 1 == EXCHANGES,
        };
        for (nth, text) in exchange.iter().enumerate() {
            if has_tool && nth + 1 == exchange.len() {
                self.look_up();
            }
            let role = if nth % 2 == 0 { "user" } else { "assistant" };
            self.messages.push(message(role, text));
        }
    }

    fn look_up(&mut self) {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let (place, thing) = (self.dice.pick(&CITIES), self.dice.pick(&THINGS));
        let arguments = serde_json::json!({"query": thing, "place": place}).to_string();
        let call = serde_json::json!({"id": id, "type": "function",
            "function": {"name": "search_listings", "arguments": arguments}});
        self.messages.push(
            serde_json::json!({"role": "assistant", "content": null, "tool_calls": [call]})
                .to_string(),
        );
        let listings: Vec<_> = (0..4)
            .map(|_| {
                serde_json::json!({"seller": self.dice.pick(&NAMES), "city": self.dice.pick(&CITIES),
                    "item": thing, "price_eur": 40 + self.dice.below(900)})
            })
            .collect();
        let result = serde_json::json!({"listings": listings}).to_string();
        self.messages.push(
            serde_json::json!({"role": "tool", "tool_call_id": id, "content": result}).to_string(),
        );
    }
}

fn message(role: &str, text: &str) -> String {
    serde_json::json!({"role": role, "content": text}).to_string()
}

/// Creates facts of all kinds with their own names and things, and the exchanges that state them,
/// in random order.
fn plant(dice: &mut Dice) -> (Vec<Planted>, Vec<Exchange>) {
    let (names, cities) = (dice.shuffled(&NAMES), dice.shuffled(&CITIES));
    let (things, roles) = (dice.shuffled(&THINGS), dice.shuffled(&ROLES));
    let (experts, rooms) = (dice.shuffled(&EXPERTS), dice.shuffled(&ROOMS));
    let (works, foods) = (dice.shuffled(&WORKS), dice.shuffled(&FOODS));
    let (colours, products) = (dice.shuffled(&COLOURS), dice.shuffled(&PRODUCTS));
    let mut planted = Vec::new();
    let mut exchanges: Vec<Exchange> = Vec::new();
    for nth in 0..4 {
        let tellings = |first: usize| (names[first + nth], cities[first + nth]);
        let (name, city) = tellings(0);
        let mut facts = vec![
            said(nth, name, city),
            number(dice, nth, things[nth], experts[nth]),
            advised(nth, rooms[nth], products[nth]),
            answered(rooms[nth + 4], colours[nth]),
            twice(names[nth + 4], foods[nth], foods[nth + 4]),
        ];
        let (name, city) = tellings(8);
        facts.push(two_hops(nth, name, city, roles[nth], colours[nth + 4], works[nth]));
        for (fact, told) in facts {
            planted.push(fact);
            exchanges.extend(told);
        }
    }
    let mut told = Vec::with_capacity(exchanges.len());
    while !exchanges.is_empty() {
        let mut exchange = exchanges.swap_remove(dice.below(exchanges.len()));
        let last = exchange.len() - 1;
        if exchange[last].is_empty() {
            exchange[last] = filled(dice, &ASSISTANT_TALK);
        }
        // Some facts are mentioned in passing.
        if dice.below(3) == 0 && !exchange[0].ends_with('?') {
            let _ = write!(exchange[0], " {}", filled(dice, &USER_TALK));
        }
        told.push(exchange);
    }
    (planted, told)
}

type Fact = (Planted, Vec<Exchange>);

fn by_user(kind: Kind, question: String, evidence: Vec<String>) -> Fact {
    let tell = |user: &String| vec![user.clone(), String::new()];
    let exchanges = evidence.iter().map(tell).collect();
    (Planted { kind, question, evidence }, exchanges)
}

fn said(nth: usize, name: &str, city: &str) -> Fact {
    let (question, evidence) = match nth {
        0 => (
            format!("Which city is {name} going to live in?"),
            format!("{name} has found a flat in {city} after all, so the boxes leave soon."),
        ),
        1 => (
            format!("Where did {name} learn to sail?"),
            format!("It was in {city} that {name} took those sailing lessons, years ago."),
        ),
        2 => (
            format!("What is {name} afraid of?"),
            format!("You would not think so, but {name} is scared of escalators."),
        ),
        _ => (
            format!("Do you remember where {name} lost the passport?"),
            format!("{name}'s passport went missing on the night train to {city}."),
        ),
    };
    by_user(Kind::Said, question, vec![evidence])
}

fn number(dice: &mut Dice, nth: usize, thing: &str, expert: &str) -> Fact {
    let (low, day) = (dice.below(90) + 10, dice.below(26) + 1);
    let (question, evidence) = match nth {
        0 | 1 => (
            format!("How much did I pay for the {thing} in the end?"),
            format!("They let me have the {thing} for {low}7 euros, delivery included."),
        ),
        2 => (
            format!("When is my appointment with the {expert}?"),
            format!("The {expert} can only see me on November {day}, at a quarter past eight."),
        ),
        _ => (
            format!("What was the order number of the {thing}?"),
            format!("The {thing} is on its way, they wrote, under order number {low}4{day}-K."),
        ),
    };
    by_user(Kind::Number, question, vec![evidence])
}

fn advised(nth: usize, room: &str, product: &str) -> Fact {
    let (user, question) = match nth % 2 {
        0 => (
            format!("What would you put on the damp wall in the {room}?"),
            format!("What did you recommend against the damp in the {room}?"),
        ),
        _ => (
            format!("How do I get the candle wax out of the rug in the {room}?"),
            format!("Which remedy did you suggest for the wax on the {room} rug?"),
        ),
    };
    let evidence = format!("I would try {product} first, thinly, and give it a whole day.");
    let exchange = vec![user, format!("{evidence} Then look at it again.")];
    (Planted { kind: Kind::Advised, question, evidence: vec![evidence] }, vec![exchange])
}

fn answered(room: &str, colour: &str) -> Fact {
    let evidence = format!("{colour}, after all that back and forth with the samples.");
    let exchange = vec![
        "The painters came by this morning and want a decision from me.".to_owned(),
        format!("And which colour is it going to be for the {room}?"),
        evidence.clone(),
        String::new(),
    ];
    let question = format!("What colour did I choose for the {room}?");
    (Planted { kind: Kind::Answered, question, evidence: vec![evidence] }, vec![exchange])
}

fn twice(name: &str, first: &str, second: &str) -> Fact {
    let evidence = vec![
        format!("{name} cannot eat {first}, by the way, it ends at the doctor's each time."),
        format!("If {name} comes I have to leave out the {second} as well, same allergy."),
    ];
    by_user(Kind::Twice, format!("Which foods is {name} allergic to?"), evidence)
}

fn two_hops(nth: usize, name: &str, city: &str, role: &str, colour: &str, work: &str) -> Fact {
    let colour = colour.to_lowercase();
    let (question, evidence) = match nth {
        0 => (
            format!("Where does my {role} live?"),
            [
                format!("{name} is my {role}, in case I have never said so."),
                format!("{name} bought a little house in {city} and never comes to town now."),
            ],
        ),
        1 => (
            format!("What does the owner of the {colour} boat do for a living?"),
            [
                format!("The {colour} boat down at the harbour belongs to {name}, it turns out."),
                format!("By trade {name} is a {work}, the third one in the family."),
            ],
        ),
        2 => (
            format!("In which city does my {role} work?"),
            [
                format!("My {role} is called {name}, a name that nobody can spell."),
                format!("{name} has an office right by the station in {city}, and hates it."),
            ],
        ),
        _ => (
            "What job does the person have who gave me the globe?".to_owned(),
            [
                format!("The globe on my shelf was a present from {name}."),
                format!("{name} earns good money as a {work} these days."),
            ],
        ),
    };
    by_user(Kind::TwoHops, question, evidence.into())
}

/// Generates an exchange that answers no question but uses the words of the facts.
fn small_talk(dice: &mut Dice) -> Exchange {
    let user = filled(dice, &USER_TALK);
    let mut assistant = filled(dice, &ASSISTANT_TALK);
    if dice.below(3) > 0 {
        let _ = write!(assistant, " {}", filled(dice, &ASSISTANT_TALK));
    }
    let user = match dice.below(4) {
        0 => format!("{user} {}", filled(dice, &USER_TALK)),
        _ => user,
    };
    vec![user, assistant]
}

/// Returns a sentence of a list with its gaps filled.
fn filled(dice: &mut Dice, sentences: &[&str]) -> String {
    let mut text = String::new();
    let mut rest = dice.pick(sentences);
    while let Some((before, after)) = rest.split_once('{') {
        let (gap, after) = after.split_once('}').expect("gaps are closed");
        text.push_str(before);
        match gap {
            "name" => text.push_str(dice.pick(&NAMES)),
            "city" => text.push_str(dice.pick(&CITIES)),
            "thing" => text.push_str(dice.pick(&THINGS)),
            "role" => text.push_str(dice.pick(&ROLES)),
            "expert" => text.push_str(dice.pick(&EXPERTS)),
            "room" => text.push_str(dice.pick(&ROOMS)),
            "work" => text.push_str(dice.pick(&WORKS)),
            "food" => text.push_str(dice.pick(&FOODS)),
            "colour" => text.push_str(&dice.pick(&COLOURS).to_lowercase()),
            "number" => _ = write!(text, "{}", 20 + dice.below(900)),
            "day" => _ = write!(text, "November {}", 1 + dice.below(28)),
            gap => panic!("no gap is called {gap}"),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}
