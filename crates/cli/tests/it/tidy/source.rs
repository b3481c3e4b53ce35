//! Source files for the tidy test: a scanner that suffices for code formatted by rustfmt, not a parser.

use std::path::{Path, PathBuf};

/// A Rust file: its text, and its code with comments and literals blanked, with the same lines.
pub struct Source {
    /// Relative to the root of the repository, with `/`.
    pub path: String,
    pub text: String,
    pub code: String,
    /// Offsets at which the lines begin.
    starts: Vec<usize>,
}

impl Source {
    pub fn new(path: String, text: String) -> Self {
        let code = blank_literals(&text);
        let starts = std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { path, text, code, starts }
    }

    /// Lines of code before the test module at the end of the file.
    pub fn lines_before_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut lines = self.code.lines().enumerate().peekable();
        std::iter::from_fn(move || {
            let (i, line) = lines.next()?;
            let is_test = line.starts_with("#[cfg(") && line.contains("test");
            let opens = lines.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{'));
            (!(is_test && opens)).then_some((i + 1, line))
        })
    }

    /// Names of test modules in their own files.
    pub fn test_modules(&self) -> Vec<String> {
        let lines: Vec<_> = self.code.lines().collect();
        let declared = |pair: &[&str]| {
            let name = pair[1]
                .trim_start_matches("pub")
                .trim_start_matches("(crate)")
                .trim()
                .strip_prefix("mod ")?;
            let is_test = pair[0].starts_with("#[cfg(") && pair[0].contains("test");
            is_test.then(|| name.strip_suffix(';').map(str::to_owned)).flatten()
        };
        lines.windows(2).filter_map(declared).collect()
    }

    /// First line, name and number of lines of each function with a body.
    pub fn functions(&self) -> Vec<(usize, String, usize)> {
        let measured = |(at, name, behind): (usize, &str, usize)| {
            let end = behind + body_end(&self.code[behind..])?;
            Some((self.line(at), name.to_owned(), self.line(end) - self.line(at) + 1))
        };
        self.signatures().filter_map(measured).collect()
    }

    /// First line and name of each function with a parameter whose type is a tuple or a reference to one.
    pub fn tuple_parameters(&self) -> Vec<(usize, String)> {
        let has_one = |behind: usize| {
            let code = self.code[behind..].trim_start();
            let generics = code.starts_with('<').then(|| elements(code)).flatten();
            let parameters = generics.map_or(code, |(_, rest)| rest).trim_start();
            elements(parameters).is_some_and(|(all, _)| all.into_iter().any(is_tuple))
        };
        let found = self.signatures().filter(|&(.., behind)| has_one(behind));
        found.map(|(at, name, _)| (self.line(at), name.to_owned())).collect()
    }

    /// Offset and name of each function, and the offset behind its name.
    fn signatures(&self) -> impl Iterator<Item = (usize, &str, usize)> {
        let mut from = 0;
        let next = move || {
            let at = from + find_word(&self.code[from..], "fn")?;
            from = at + 2;
            let rest = self.code[from..].trim_start();
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            Some((at, &rest[..len], self.code.len() - rest.len() + len))
        };
        std::iter::from_fn(next).filter(|(_, name, _)| !name.is_empty())
    }

    /// Number of the line with an offset.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at)
    }

    /// Number of text lines of the `//!` header.
    pub fn header_lines(&self) -> usize {
        let attribute = |line: &&str| line.starts_with("#!") || line.is_empty();
        let header = self.text.lines().skip_while(attribute).map_while(|line| line.strip_prefix("//!"));
        let mut drawing = false;
        let is_text = |line: &&str| {
            let fence = line.trim_start().starts_with("```");
            drawing ^= fence;
            !(drawing || fence || line.trim().is_empty())
        };
        header.filter(is_text).count()
    }
}

/// Offset of `word` in `code` as a whole word.
pub fn find_word(code: &str, word: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(at, _)| at).find(|&at| {
        !code[..at].chars().next_back().is_some_and(part)
            && !code[at + word.len()..].chars().next().is_some_and(part)
    })
}

/// Offset of the closing brace of the function whose name `code` begins with; `None` without a body.
fn body_end(code: &str) -> Option<usize> {
    let (mut braces, mut others) = (0_i32, 0_i32);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => others += 1,
            ')' | ']' => others -= 1,
            ';' if braces == 0 && others == 0 => return None,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => continue,
        }
        if c == '}' && braces == 0 && others == 0 {
            return Some(at);
        }
        if braces < 0 || others < 0 {
            return None;
        }
    }
    None
}

/// Elements of the list in brackets that `code` begins with, and the code behind it; `None` without a list.
fn elements(code: &str) -> Option<(Vec<&str>, &str)> {
    let (mut found, mut from, mut depth, mut before) = (Vec::new(), 1, 0_i32, ' ');
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if matches!(before, '-' | '=') => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        if depth < 1 && at == 0 {
            return None;
        }
        if depth == 0 || (depth == 1 && c == ',') {
            found.push(&code[from..at]);
            from = at + 1;
        }
        if depth == 0 {
            return Some((found, &code[from..]));
        }
        before = c;
    }
    None
}

/// Whether the type of a parameter is a tuple or a reference to one.
fn is_tuple(parameter: &str) -> bool {
    // The pattern may have paths.
    let parameter = parameter.replace("::", "  ");
    let Some((_, kind)) = parameter.split_once(':') else { return false };
    let (front, list) = kind.split_at(kind.find('(').unwrap_or(kind.len()));
    let refers = |word: &str| word == "mut" || word.starts_with('\'');
    front.replace('&', " ").split_whitespace().all(refers)
        && elements(list).is_some_and(|(elements, _)| elements.len() > 1)
}

/// Replaces comments and the content of literals by blanks.
fn blank_literals(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_len(rest),
            '\'' => char_len(rest),
            'r' | 'b' | 'c' if !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
                prefixed_len(rest)
            }
            _ => 0,
        };
        let taken = if skipped == 0 { c.len_utf8() } else { skipped };
        let (here, next) = rest.split_at(taken);
        match skipped {
            0 => out.push(c),
            _ => out.extend(here.chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
        }
        rest = next;
    }
    out
}

/// Length of the string literal at the front of `text`.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the character literal at the front of `text`; 0 for a lifetime.
fn char_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |end| end + 4),
        Some(_) => chars.next().filter(|&(_, c)| c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

/// Length of the raw, byte or C string at the front of `text`; 0 if there is none.
fn prefixed_len(text: &str) -> usize {
    let prefix = text.len() - text.trim_start_matches(['r', 'b', 'c']).len();
    let hashes = text[prefix..].len() - text[prefix..].trim_start_matches('#').len();
    let opening = prefix + hashes;
    match text[opening..].chars().next() {
        Some('"') if text[..prefix].contains('r') => {
            let closing = format!("\"{}", "#".repeat(hashes));
            text[opening + 1..].find(&closing).map_or(text.len(), |at| opening + 1 + at + closing.len())
        }
        Some('"') if prefix <= 2 && hashes == 0 => prefix + string_len(&text[prefix..]),
        Some('\'') if &text[..prefix] == "b" && hashes == 0 => match char_len(&text[1..]) {
            0 => 0,
            len => len + 1,
        },
        _ => 0,
    }
}

/// All files below `root` with one of the extensions, except for build output and downloads.
pub fn files(root: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("a readable entry").path()) {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let built =
                name.starts_with("target") || ["corpus", "artifacts", "coverage"].contains(&name.as_str());
            let hidden = name.starts_with('.') && name != ".ci";
            if path.is_dir() && !built && !hidden {
                folders.push(path);
            } else if path.is_file() {
                let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
                if extensions.contains(&extension.as_deref().unwrap_or("")) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    found
}
