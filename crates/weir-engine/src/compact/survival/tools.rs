//! Kinds of tools, recognised by their names alone. Pure.

/// Parts of the plain names of tools that write lists of tasks.
const LISTS: [&str; 5] = ["todowrite", "writetodo", "addtodo", "updateplan", "todolist"];
/// Parts of the names of tools that edit files.
const EDITORS: [&str; 6] = ["edit", "write", "patch", "replace", "insert", "create"];
/// Parts of the names of tools that run commands.
const SHELLS: [&str; 9] =
    ["bash", "shell", "exec", "command", "terminal", "run", "cmd", "console", "powershell"];

/// Tool that handles one task at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskTool {
    Create,
    Update,
}

/// Kinds of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool {
    /// Whether it writes lists of tasks.
    pub(super) lists_tasks: bool,
    pub(super) task: Option<TaskTool>,
    pub(super) edits_files: bool,
    pub(super) runs_commands: bool,
}

impl Tool {
    /// Returns the kinds of the tool with this name. A command in a text has no name.
    pub(super) fn of_name(name: &str) -> Self {
        let (plain, lower) = (plain(name), name.to_lowercase());
        let has = |name: &str, parts: &[&str]| parts.iter().any(|part| name.contains(part));
        Self {
            lists_tasks: has(&plain, &LISTS) || plain == "todos",
            task: match plain.as_str() {
                "taskcreate" => Some(TaskTool::Create),
                "taskupdate" => Some(TaskTool::Update),
                _ => None,
            },
            edits_files: has(&lower, &EDITORS) && !lower.contains("todo"),
            runs_commands: lower.is_empty() || has(&lower, &SHELLS),
        }
    }
}

/// Returns a name in lower case and without signs.
pub(super) fn plain(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
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
            ("TaskCreate", "task edits"),
            ("task_update", "task"),
            ("str_replace_editor", "edits"),
            ("Bash", "runs"),
            ("", "runs"),
            ("run_edit", "edits runs"),
            ("read_file", ""),
        ] {
            let own = Tool::of_name(name);
            let all = [
                (own.lists_tasks, "lists"),
                (own.task.is_some(), "task"),
                (own.edits_files, "edits"),
                (own.runs_commands, "runs"),
            ];
            let words = all.into_iter().filter(|(is_one, _)| *is_one).map(|(_, word)| word);
            assert_eq!(words.collect::<Vec<_>>().join(" "), kinds, "{name}");
        }
    }
}
