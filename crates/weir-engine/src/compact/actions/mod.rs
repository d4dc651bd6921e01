//! Actions of an agent: what its calls are by the names of their tools (`tools`), what their arguments mean,
//! and whether they succeeded (`outcome`). Every other part of the engine asks here. Pure.

pub(crate) mod outcome;
pub(crate) mod tools;

use crate::compact::message::reading::Argument;

/// Names of arguments, in lower case and without signs, for the path of a file.
const PATHS: [&str; 9] = [
    "path",
    "filepath",
    "file",
    "filename",
    "targetfile",
    "relativepath",
    "relativeworkspacepath",
    "notebookpath",
    "absolutepath",
];
/// Names of arguments for the text that an edit puts into a file.
const TEXTS: [&str; 15] = [
    "new",
    "newstring",
    "newstr",
    "newtext",
    "newcontent",
    "newsource",
    "content",
    "contents",
    "filetext",
    "inserttext",
    "replacement",
    "replace",
    "text",
    "codeedit",
    "newcode",
];

/// Returns the argument with the path of a file.
pub(crate) fn path(arguments: &[Argument]) -> Option<&Argument> {
    arguments.iter().find(|own| PATHS.contains(&&*own.name))
}

/// Returns the arguments with texts that an edit puts into a file.
pub(crate) fn texts(arguments: &[Argument]) -> impl Iterator<Item = &Argument> {
    arguments.iter().filter(|own| TEXTS.contains(&&*own.name))
}
