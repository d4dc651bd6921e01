//! Recognition of tasks: the newest list that the agent wrote with a tool for it, the newest message with
//! boxes, and tasks that a tool makes one by one. A newer list replaces an older one, and a list without an
//! open task says nothing. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use memchr::memchr_iter;
use serde_json::value::RawValue;

use super::calls::{Called, Calls};
use super::parts::{marked, said, units_within};
use crate::compact::actions::outcome;
use crate::compact::actions::tools::TaskTool;
use crate::compact::excerpt::subject::Subject;
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::reading::plain;
use crate::compact::message::reading::{Block, BlockKind, Reading};
use crate::wire::{Role, json};

/// Maximum number of tasks of a list, and of lists that are looked at.
const MOST_TASKS: usize = 64;
const MOST_LISTS: usize = 256;
/// Maximum number of done tasks that are looked for in notes, the newest first.
const MOST_DONE: usize = 2 * MOST_TASKS;
/// Maximum number of brackets at which a list may begin.
const MOST_BRACKETS: usize = 8;
/// Members of a record with the text of its task, with its state as a word, and with its state as a switch.
const TEXTS: [&str; 8] =
    ["content", "step", "description", "title", "task", "text", "subject", "name"];
const STATES: [&str; 2] = ["status", "state"];
const SWITCHES: [&str; 5] = ["done", "completed", "is_done", "isDone", "checked"];
/// States of a task that nobody works on any more, without signs.
const DONE: [&str; 10] = [
    "completed",
    "complete",
    "done",
    "finished",
    "closed",
    "cancelled",
    "canceled",
    "deleted",
    "skipped",
    "abandoned",
];

/// States of a task that is still open, without signs.
const OPEN: [&str; 5] = ["pending", "inprogress", "todo", "notstarted", "open"];

/// Task with its place.
#[derive(Debug, Clone)]
struct Task {
    message: usize,
    span: Range<usize>,
    /// Its text, in lower case and without marks.
    text: String,
    /// Its name in changes of the list, if it has one.
    id: Option<String>,
    is_done: bool,
}

/// List of tasks of one call or message.
#[derive(Debug, Clone)]
struct List {
    tasks: Vec<Task>,
    /// Whether older lists hold what it does not name.
    is_partial: bool,
}

/// Tasks of a conversation by their newest state.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    open: Vec<Task>,
    done: Vec<Task>,
    /// States that a newer list, or a newer state, replaces.
    outdated: Vec<Task>,
}

/// Returns the units with open tasks, each with its message, in order. A done task is one of them only if a
/// note that stays still shows it as open.
pub(super) fn of(subject: &Subject<'_>, tasks: &Tasks) -> Vec<(usize, usize)> {
    let is_gone = marked(subject.gone, subject.readings.len());
    let notes = Shown::of(if tasks.done.is_empty() { &[] } else { subject.notes });
    let is_corrected = |task: &&Task| notes.shows_open(&task.text);
    let mut wanted: Vec<&Task> = tasks.open.iter().take(2 * MOST_TASKS).collect();
    let newest_done = tasks.done.iter().take(MOST_DONE);
    wanted.extend(newest_done.filter(is_corrected).take(MOST_TASKS));
    wanted.retain(|task| is_gone[task.message]);
    let mut units = Vec::new();
    for task in wanted {
        let reading = &subject.readings[task.message];
        units.extend(units_within(reading, &task.span).map(|unit| (task.message, unit)));
    }
    units
}

/// Returns the units, each with its message, that show a task in an outdated state: nobody needs them.
pub(super) fn outdated(subject: &Subject<'_>, tasks: &Tasks) -> BTreeSet<(usize, usize)> {
    let readings = subject.readings;
    let notes = Shown::of(if tasks.done.is_empty() { &[] } else { subject.notes });
    let newest_done = tasks.done.iter().take(MOST_DONE);
    let corrected = newest_done.filter(|task| notes.shows_open(&task.text));
    let units = |task: &Task| {
        let message = task.message;
        units_within(&readings[message], &task.span).map(move |unit| (message, unit))
    };
    let mut over: BTreeSet<(usize, usize)> =
        tasks.outdated.iter().chain(&tasks.done).flat_map(units).collect();
    for unit in tasks.open.iter().chain(corrected).flat_map(units) {
        over.remove(&unit);
    }
    // The words of a user stay theirs.
    over.retain(|(message, _)| readings[*message].role == Role::Assistant);
    over
}

/// Finds all tasks.
pub(super) fn tasks(readings: &[Arc<Reading>], calls: &Calls) -> Tasks {
    let mut of_tools = current(lists_of_tools(readings, calls));
    let mut of_boxes = current(boxes(readings, calls));
    // Each form corrects the other by equal texts; a list of a tool also replaces boxes of the agent.
    correct(&mut of_tools, &of_boxes);
    correct(&mut of_boxes, &of_tools);
    let newest = |tasks: &Tasks| tasks.open.iter().chain(&tasks.done).map(|own| own.message).max();
    if let Some(newest) = newest(&of_tools) {
        let is_replaced = |task: &mut Task| {
            task.message < newest && readings[task.message].role == Role::Assistant
        };
        of_boxes.outdated.extend(of_boxes.open.extract_if(.., is_replaced));
    }
    let mut all = of_tools;
    for more in [of_boxes, made(readings, calls)] {
        all.open.extend(more.open);
        all.done.extend(more.done);
        all.outdated.extend(more.outdated);
    }
    all
}

/// Moves the tasks that a newer one of `other` with the same text says are done.
fn correct(tasks: &mut Tasks, other: &Tasks) {
    let done: HashMap<&str, usize, Seeded> =
        other.done.iter().map(|task| (task.text.as_str(), task.message)).collect();
    let is_over = |task: &mut Task| done.get(task.text.as_str()) > Some(&task.message);
    tasks.outdated.extend(tasks.open.extract_if(.., is_over));
}

/// Sorts the tasks of lists, the newest list first.
fn current(lists: impl Iterator<Item = List>) -> Tasks {
    let mut tasks = Tasks::default();
    let mut named: HashSet<String, Seeded> = HashSet::default();
    let mut is_replaced = false;
    for list in lists.take(MOST_LISTS) {
        let mut own: Vec<Task> = Vec::new();
        // The last state in a message counts.
        for task in list.tasks.into_iter().rev() {
            let is_new = named.insert(task.id.clone().unwrap_or_else(|| task.text.clone()));
            match is_new && !is_replaced {
                true => own.push(task),
                false => tasks.outdated.push(task),
            }
        }
        own.reverse();
        let (done, open): (Vec<Task>, Vec<Task>) = own.into_iter().partition(|task| task.is_done);
        tasks.open.extend(open);
        tasks.done.extend(done);
        is_replaced |= !list.is_partial;
    }
    tasks
}

/// Returns the lists that calls of tools for it wrote, the newest first.
fn lists_of_tools<'a>(
    readings: &'a [Arc<Reading>],
    calls: &'a Calls,
) -> impl Iterator<Item = List> + 'a {
    calls.list.iter().rev().filter(|call| !has_failed(readings, call)).filter_map(|call| {
        let (_, arguments) = call.parts(readings);
        let is_named = call.tool.lists_tasks;
        if call.tool.task == Some(TaskTool::Finish) {
            let id = argument(arguments, |name| name.ends_with("id"))?;
            let (message, span) = (call.message, call.span.clone());
            let done = Task { message, span, text: String::new(), id: Some(id), is_done: true };
            return Some(List { tasks: vec![done], is_partial: true });
        }
        if !is_named && !STATES.iter().any(|own| arguments.contains(&format!("\"{own}\""))) {
            return None;
        }
        let is_partial = arguments.lines().any(|line| line.trim() == "merge: true");
        let mut tasks = records(call.message, call.span.start, arguments, !is_named);
        if tasks.is_empty() && is_named {
            tasks = boxes_of(&readings[call.message], call.message, &call.span, true);
        }
        (is_named || !tasks.is_empty()).then_some(List { tasks, is_partial })
    })
}

/// Returns the first argument whose plain name `is_own`.
fn argument(arguments: &str, is_own: impl Fn(&str) -> bool) -> Option<String> {
    arguments.lines().find_map(|line| {
        let (own, value) = line.split_once(": ").unwrap_or(("id", line));
        is_own(&plain(own)).then(|| value.trim().trim_matches('"').to_owned())
    })
}

fn has_failed(readings: &[Arc<Reading>], call: &Called) -> bool {
    call.result.is_some_and(|result| outcome::has_failed(&readings[result]))
}

/// Returns the records of the first list in the arguments of a call, which stand at `start` of the message. If it
/// `must_be_known`, they are tasks only if each has a state that tasks have.
fn records(message: usize, start: usize, arguments: &str, must_be_known: bool) -> Vec<Task> {
    let list = |(open, _): (usize, &str)| {
        let values = serde_json::Deserializer::from_str(&arguments[open..]);
        let list: Vec<&RawValue> = values.into_iter().next()?.ok()?;
        list.first().is_some_and(|first| first.get().starts_with(['{', '"'])).then_some(list)
    };
    // A text before the list may have brackets.
    let list = arguments.match_indices('[').take(MOST_BRACKETS).find_map(list);
    let mut is_known = true;
    let mut task = |raw: &RawValue| {
        let raw = raw.get();
        // Records are parts of the arguments.
        let at = start + (raw.as_ptr() as usize - arguments.as_ptr() as usize);
        let span = at..at + raw.len();
        let Some(members) = json::members(raw) else {
            let text = plain_text(&json::string(raw).unwrap_or_default());
            is_known = false;
            return Task { message, span, text, id: None, is_done: false };
        };
        let member = |names: &[&str]| {
            let own = |wanted: &&str| members.iter().find(|(name, _)| name == wanted);
            names.iter().find_map(own).map(|(_, value)| *value)
        };
        let text = member(&TEXTS).and_then(json::string).unwrap_or_default();
        let state = member(&STATES).and_then(json::string).unwrap_or_default();
        is_known &=
            DONE.contains(&plain(&state).as_str()) || OPEN.contains(&plain(&state).as_str());
        let is_done = DONE.contains(&plain(&state).as_str())
            || SWITCHES.iter().any(|name| member(&[name]) == Some("true"));
        let id = member(&["id"]).map(|id| id.trim_matches('"').to_owned());
        Task { message, span, text: plain_text(&text), id, is_done }
    };
    // A change of a list may name a task by its ID alone.
    let is_task = |task: &Task| !task.text.is_empty() || (task.id.is_some() && task.is_done);
    let list = list.unwrap_or_default().into_iter();
    let tasks: Vec<Task> = list.map(&mut task).filter(is_task).take(MOST_TASKS).collect();
    if must_be_known && !is_known { Vec::new() } else { tasks }
}

/// Returns the lists of boxes in texts, and in what the agent wrote into files, the newest first.
fn boxes<'a>(readings: &'a [Arc<Reading>], calls: &'a Calls) -> impl Iterator<Item = List> + 'a {
    let of_block = |message: usize, block: &Block| {
        let reading = &readings[message];
        let is_text = match &block.kind {
            BlockKind::Text => true,
            BlockKind::Output => return None,
            BlockKind::Call { name, .. } if calls.tool(name).lists_tasks => return None,
            BlockKind::Call { .. } => false,
        };
        let tasks = boxes_of(reading, message, &block.span, !is_text);
        if tasks.is_empty() {
            return None;
        }
        // An edit names the lines that it changes; a single ticked box reports one task of a list.
        let is_edit = !is_text
            && reading.text[block.span.clone()].lines().any(|line| names_text(line) == Some(true));
        let is_partial = is_edit || (tasks.len() == 1 && tasks[0].is_done);
        Some(List { tasks, is_partial })
    };
    let is_speaker =
        |message: &usize| matches!(readings[*message].role, Role::User | Role::Assistant);
    (0..readings.len()).rev().filter(is_speaker).flat_map(move |message| {
        let blocks = readings[message].blocks.iter().rev();
        blocks.filter_map(|block| of_block(message, block)).collect::<Vec<List>>()
    })
}

/// Returns whether an argument that begins on a line is the old text of an edit. `None` if none begins there.
fn names_text(line: &str) -> Option<bool> {
    let is_name = |name: &str| name.len() <= 24 && !name.contains(char::is_whitespace);
    let (name, _) = line.split_once(':').filter(|(name, _)| is_name(name))?;
    let name = plain(name);
    let is_other = ["new", "path", "file", "replace", "content", "text"]
        .iter()
        .any(|own| name.starts_with(own));
    match name.starts_with("old") {
        true => Some(true),
        false => is_other.then_some(false),
    }
}

/// Returns the tasks of boxes in a part of a message.
fn boxes_of(reading: &Reading, message: usize, span: &Range<usize>, is_call: bool) -> Vec<Task> {
    let own = &reading.text[span.clone()];
    let is_box = |at: usize| matches!(own.as_bytes()[at..], [_, b' ' | b'x' | b'X', b']', ..]);
    if !memchr_iter(b'[', own.as_bytes()).any(is_box) {
        return Vec::new();
    }
    let mut tasks = Vec::new();
    let (mut start, mut is_old) = (span.start, false);
    for line in own.split_inclusive('\n') {
        let place = start..start + line.trim_end().len();
        start += line.len();
        if is_call && let Some(names_old) = names_text(line) {
            is_old = names_old;
        }
        if is_old {
            continue;
        }
        let Some((text, is_done)) = ticked(line) else { continue };
        tasks.push(Task { message, span: place, text: plain_text(text), id: None, is_done });
        if tasks.len() == MOST_TASKS {
            break;
        }
    }
    tasks
}

/// Returns the text of a line with a box, and whether it is ticked.
fn ticked(line: &str) -> Option<(&str, bool)> {
    // The name of the argument of a call, and the marks of a patch, may stand before it.
    let line = line.trim();
    let line = match line.split_once(": ") {
        Some((name, rest))
            if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') =>
        {
            rest
        }
        _ => line,
    };
    let line =
        line.trim_start_matches(|letter: char| letter.is_ascii_digit() || ".)".contains(letter));
    let line = line.trim_start_matches(['-', '*', '+', ' ', '\t']);
    let (mark, text) = line.strip_prefix('[')?.split_once(']')?;
    let is_done = match mark {
        " " | "" | "-" | "~" | ">" | "/" => false,
        "x" | "X" | "✓" | "✔" | "✅" => true,
        _ => return None,
    };
    let is_task = text.starts_with(' ') && !text.trim().is_empty();
    is_task.then(|| (text.trim(), is_done))
}

/// Returns the tasks that a tool makes one by one, as `TaskCreate` and `TaskUpdate` do.
fn made(readings: &[Arc<Reading>], calls: &Calls) -> Tasks {
    let mut tasks = Tasks::default();
    let mut all: Vec<Task> = Vec::new();
    // Newest task of each ID, by its place.
    let mut by_id: HashMap<String, usize, Seeded> = HashMap::default();
    let value = |arguments: &str, name: &str| argument(arguments, |own| own == name);
    for call in &calls.list {
        let (_, arguments) = call.parts(readings);
        let Some(tool) = call.tool.task.filter(|_| !has_failed(readings, call)) else { continue };
        match tool {
            TaskTool::Create => {
                let Some(text) = value(arguments, "subject") else { continue };
                // "Task #3 created": the number names it later.
                let result = call.result.map_or("", |result| readings[result].text.as_str());
                let number = result.split_once('#').map_or("", |(_, rest)| rest);
                let id: String = number.chars().take_while(char::is_ascii_digit).collect();
                let (message, span) = (call.message, call.span.clone());
                let text = plain_text(&text);
                by_id.insert(id, all.len());
                all.push(Task { message, span, text, id: None, is_done: false });
            }
            TaskTool::Finish => {}
            TaskTool::Update => {
                let id = value(arguments, "taskid").unwrap_or_default();
                let state = value(arguments, "status").unwrap_or_default();
                if let Some(place) = by_id.get(&id).filter(|_| !id.is_empty()) {
                    all[*place].is_done = DONE.contains(&plain(&state).as_str());
                }
            }
        }
    }
    (tasks.outdated, tasks.open) = all.into_iter().partition(|task| task.is_done);
    tasks
}

/// Units of the notes that stay, in lower case, with whether each shows its task as done.
struct Shown(Vec<(String, bool)>);

impl Shown {
    fn of(notes: &[Arc<Reading>]) -> Self {
        let units = notes.iter().flat_map(|note| note.units.iter().map(|unit| said(note, unit)));
        let shown = |text: &str| {
            let lower = text.to_lowercase();
            let boxed = text.lines().find_map(ticked).map(|(_, is_done)| is_done);
            let is_done = boxed.unwrap_or_else(|| DONE.iter().any(|word| lower.contains(word)));
            (lower, is_done)
        };
        Self(units.map(shown).collect())
    }

    /// Returns whether the notes show a task as open, and nowhere as done.
    fn shows_open(&self, text: &str) -> bool {
        let mut own = self.0.iter().filter(|(shown, _)| !text.is_empty() && shown.contains(text));
        own.clone().next().is_some() && own.all(|(_, is_done)| !is_done)
    }
}

/// Returns a task's text in lower case, without the marks around it.
fn plain_text(text: &str) -> String {
    let is_mark = |letter: char| letter.is_whitespace() || "*_~`.".contains(letter);
    text.trim_matches(is_mark).to_lowercase()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::Protocol;

    fn said_by(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    fn call(name: &str, arguments: &Value) -> Value {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        let call = json!({"id": "a", "type": "function", "function": function});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    }

    fn todos(states: &[(&str, &str)]) -> Value {
        let task = |(content, status): &(&str, &str)| json!({"content": content, "status": status});
        call("TodoWrite", &json!({"todos": states.iter().map(task).collect::<Vec<Value>>()}))
    }

    /// Returns the texts of the open tasks, and of the outdated states.
    fn found(messages: &[Value]) -> (Vec<String>, usize) {
        let read = |raw: &Value| {
            let raw = raw.to_string();
            Arc::new(Reading::of(&Protocol::Chat.read_message(&raw).expect("a message")))
        };
        let readings: Vec<Arc<Reading>> = messages.iter().map(read).collect();
        let tasks = tasks(&readings, &Calls::of(&readings));
        (tasks.open.into_iter().map(|task| task.text).collect(), tasks.outdated.len())
    }

    #[test]
    fn a_newer_list_replaces_the_older() {
        let older = todos(&[("grease", "in_progress"), ("paint", "pending"), ("lift", "pending")]);
        let newer = todos(&[("grease", "completed"), ("paint", "in_progress")]);
        assert_eq!(found(&[older.clone(), newer]), (vec!["paint".to_owned()], 3));
        let done = todos(&[("grease", "completed"), ("paint", "cancelled")]);
        assert_eq!(found(&[older.clone(), done]), (vec![], 3));
        let refused = json!({"role": "tool", "tool_call_id": "a", "content": "Error: no list"});
        assert_eq!(found(&[older.clone(), todos(&[("a", "completed")]), refused]).0.len(), 3);
        let plan = json!({"explanation": "first part is completed", "plan": [
            {"step": "grease", "status": "completed"}, {"step": "paint", "status": "pending"}]});
        assert_eq!(found(&[older, call("update_plan", &plan)]), (vec!["paint".to_owned()], 3));
    }

    #[test]
    fn a_change_of_a_list_names_some_of_its_tasks() {
        let list = json!({"merge": false, "todos": [
            {"id": "1", "content": "grease", "status": "pending"},
            {"id": "2", "content": "paint", "status": "pending"}]});
        let change = json!({"merge": true, "todos": [{"id": "1", "status": "completed"}]});
        let messages = [call("todo_write", &list), call("todo_write", &change)];
        assert_eq!(found(&messages), (vec!["paint".to_owned()], 1));
    }

    #[test]
    fn a_list_is_known_by_its_states_and_a_task_is_done_by_its_id() {
        let list = json!({"command": "plan", "task_list": [
            {"id": "1", "title": "grease", "status": "todo"},
            {"id": "2", "title": "paint", "status": "in_progress"}]});
        let other = json!({"orders": [{"title": "gate", "status": "shipped"}]});
        let done = call("mark_todo_done", &json!({"todo_id": "2"}));
        let messages = [call("task_tracker", &list), call("file", &other), done];
        assert_eq!(found(&messages), (vec!["grease".to_owned()], 1));
    }

    #[test]
    fn a_call_of_a_user_behind_an_action_is_a_call() {
        let mut output = call("todo_write", &json!({"todos": "- [ ] grease"}));
        (output["role"], output["content"]) = (json!("user"), json!("<out>x</out>"));
        let action = said_by("assistant", "I look.\n```sh\nls\n```");
        let messages = [said_by("user", "- [ ] paint"), action, output];
        assert_eq!(found(&messages), (vec!["grease".to_owned(), "paint".to_owned()], 0));
    }

    #[test]
    fn boxes_have_their_newest_state() {
        let list = said_by("user", "Please:\n- [ ] grease\n- [x] paint\n1. [ ] **lift**\n[ ]");
        assert_eq!(
            found(std::slice::from_ref(&list)),
            (vec!["grease".to_owned(), "lift".to_owned()], 0)
        );
        let one = said_by("assistant", "- [x] grease");
        assert_eq!(found(&[list.clone(), one]), (vec!["lift".to_owned()], 1));
        let all = said_by("assistant", "- [x] grease\n- [x] paint\n- [x] lift");
        assert_eq!(found(&[list.clone(), all]).0, Vec::<String>::new());
        let other = said_by("assistant", "- [ ] call\n- [ ] write");
        assert_eq!(found(&[list.clone(), other]).0, ["call", "write"]);
        let edit =
            json!({"path": "TODO.md", "old_string": "- [ ] lift", "new_string": "- [x] lift"});
        assert_eq!(found(&[list.clone(), call("edit", &edit)]).0, ["grease"]);
        let added = json!({"path": "TODO.md", "new_string": "- [ ] lift\n- [ ] row",
            "old_string": "- [ ] lift"});
        assert_eq!(found(&[list.clone(), call("edit", &added)]).0, ["lift", "row", "grease"]);
        // A list of a tool says that a user's task is done.
        let done = todos(&[("lift", "completed"), ("see", "pending")]);
        assert_eq!(found(&[list, done]).0, ["see", "grease"]);
    }

    #[test]
    fn tasks_made_one_by_one_are_open_until_they_are_done() {
        let create =
            |subject: &str| call("TaskCreate", &json!({"subject": subject, "description": "d"}));
        let made = |number: usize| {
            let content = format!("Task #{number} created successfully");
            json!({"role": "tool", "tool_call_id": "a", "content": content})
        };
        let update =
            |id: &str, status: &str| call("TaskUpdate", &json!({"taskId": id, "status": status}));
        let mut messages = vec![create("grease"), made(1), create("paint"), made(2)];
        messages.push(update("1", "in_progress"));
        assert_eq!(found(&messages).0, ["grease", "paint"]);
        messages.push(update("1", "completed"));
        assert_eq!(found(&messages), (vec!["paint".to_owned()], 1));
    }

    #[test]
    fn a_note_that_shows_a_done_task_as_open_is_noticed() {
        let note = |text: &str| [Arc::new(Reading::of_text(Role::User, text))];
        for (text, expected) in [
            (r#"#3 > todos: {"content":"paint","status":"pending"}"#, true),
            (r#"#3 > todos: {"content":"paint","status":"completed"}"#, false),
            ("- [ ] Paint", true),
            ("- [x] Paint", false),
            ("nothing", false),
        ] {
            assert_eq!(Shown::of(&note(text)).shows_open("paint"), expected, "{text}");
        }
    }
}
