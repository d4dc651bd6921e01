//! Kinds of tools, recognised by their names alone. Pure.

use crate::compact::message::reading::plain;

/// Parts of the plain names of tools that write lists of tasks.
const LISTS: [&str; 5] = ["todowrite", "writetodo", "addtodo", "updateplan", "todolist"];
/// Words in the names of tools that edit files, and names that are several words in one.
const EDITORS: [&str; 26] = [
    "edit",
    "edits",
    "editor",
    "write",
    "writer",
    "patch",
    "diff",
    "replace",
    "insert",
    "create",
    "update",
    "append",
    "save",
    "modify",
    "overwrite",
    "rewrite",
    "multiedit",
    "notebookedit",
    "editfile",
    "writefile",
    "createfile",
    "updatefile",
    "applypatch",
    "applydiff",
    "strreplace",
    "fswrite",
];
/// Words in the names of tools that run commands, and names that are several words in one.
const SHELLS: [&str; 19] = [
    "bash",
    "sh",
    "zsh",
    "shell",
    "exec",
    "execute",
    "command",
    "commands",
    "terminal",
    "run",
    "cmd",
    "console",
    "powershell",
    "pwsh",
    "runcommand",
    "execcommand",
    "executebash",
    "localshell",
    "bashtool",
];

/// Parts of the plain names of tools that ask a user: Claude Code's, Roo's and codex's, and those of others.
const ASKERS: [&str; 8] = [
    "askuser",
    "askfollowup",
    "requestuserinput",
    "interactivefeedback",
    "userfeedback",
    "humaninput",
    "humanassistance",
    "humanapproval",
];

/// Tool that handles one task at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskTool {
    Create,
    Update,
    /// Says that a task of a list is done.
    Finish,
}

/// Kinds of a tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// Whether it writes lists of tasks.
    pub(crate) lists_tasks: bool,
    pub(crate) task: Option<TaskTool>,
    pub(crate) edits_files: bool,
    pub(crate) runs_commands: bool,
    /// Whether its results are what a user says.
    pub(crate) asks_user: bool,
}

impl Tool {
    /// Returns the kinds of the tool with this name. A command in a text has no name.
    pub(crate) fn of_name(name: &str) -> Self {
        let (plain, words) = (plain(name), words(name));
        let has = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
        let lists_tasks = plain == "todos" || LISTS.iter().any(|part| plain.contains(part));
        let task = match plain.as_str() {
            "taskcreate" => Some(TaskTool::Create),
            "taskupdate" => Some(TaskTool::Update),
            _ if has(&["todo", "task"]) && has(&["done", "complete", "finish", "check"]) => {
                Some(TaskTool::Finish)
            }
            _ => None,
        };
        Self {
            lists_tasks,
            task,
            edits_files: has(&EDITORS) && !lists_tasks && task.is_none(),
            runs_commands: name.is_empty() || has(&SHELLS),
            asks_user: ASKERS.iter().any(|part| plain.contains(part))
                || has(&["ask", "request"]) && has(&["user", "human", "input"]),
        }
    }
}

/// Returns the words of a name, in lower case: they begin behind signs and at capitals.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() || (letter.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_from_names() {
        for (name, kinds) in [
            ("TodoWrite", "lists"),
            ("update_plan", "lists"),
            ("todos", "lists"),
            ("TaskCreate", "task"),
            ("task_update", "task"),
            ("mark_todo_done", "task"),
            ("str_replace_editor", "edits"),
            ("Bash", "runs"),
            ("", "runs"),
            ("run_edit", "edits runs"),
            ("read_file", ""),
            ("update_file", "edits"),
            ("apply_diff", "edits"),
            ("MultiEdit", "edits"),
            ("multiedit", "edits"),
            ("fs.writeFile", "edits"),
            ("credit_lookup", ""),
            ("AskUserQuestion", "asks"),
            ("ask_followup_question", "asks"),
            ("mcp__feedback__interactive_feedback", "asks"),
            ("ask_question", ""),
            ("rewritten_query", ""),
            ("prune_branches", ""),
            ("runCommands", "runs"),
            ("container.exec", "runs"),
        ] {
            let own = Tool::of_name(name);
            let all = [
                (own.lists_tasks, "lists"),
                (own.task.is_some(), "task"),
                (own.asks_user, "asks"),
                (own.edits_files, "edits"),
                (own.runs_commands, "runs"),
            ];
            let words = all.into_iter().filter(|(is_one, _)| *is_one).map(|(_, word)| word);
            assert_eq!(words.collect::<Vec<_>>().join(" "), kinds, "{name}");
        }
    }
}
