//! Errors of the crate: one sentence each, for a caller or a command line.
//!
//! Four families: a table or predicate that does not fit the schema, a table that does not fit a layout,
//! an image whose bytes are damaged, and a file that cannot be used. None leaves anything changed.

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request that cannot be served, or an image that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("a table needs at least one column")]
    NoColumns,
    #[error("a table has {columns} columns; an Elf has at most 65535")]
    TooManyColumns { columns: usize },
    #[error("column {number} of the schema has no name")]
    UnnamedColumn { number: usize },
    #[error("the schema has two columns named `{name}`")]
    DuplicateColumn { name: String },
    #[error("there is no column `{name}`; the columns are {columns}")]
    UnknownColumn { name: String, columns: String },
    #[error("there is no column number {column}: the table has {columns}, counted from 0")]
    ColumnOutOfRange { column: usize, columns: usize },
    #[error("column {column} has {rows} rows where the first one has {expected}")]
    UnevenColumns { column: usize, rows: usize, expected: usize },
    #[error("{values} values were given for {columns} columns")]
    WrongArity { values: usize, columns: usize },
    #[error("column `{column}` holds values of type {expected}, not {found}")]
    WrongType { column: String, expected: String, found: String },
    #[error("column `{column}` is not nullable, but NULL was found")]
    UnexpectedNull { column: String },
    #[error("code {code} of column `{column}` is not in its dictionary of {values} values")]
    UnknownCode { column: String, code: u32, values: usize },
    #[error("column `{column}` has more distinct values than 32-bit codes can count")]
    TooManyValues { column: String },
    #[error("the column order {order:?} does not name each of the {columns} columns once")]
    BadOrder { order: Vec<usize>, columns: usize },
    #[error("a bucket holds at least one row")]
    EmptyBucket,
    #[error("the table has {rows} rows; {layout} holds at most {limit}")]
    TooManyRows { rows: u64, layout: &'static str, limit: u64 },
    #[error("column {column} has the code {code}; the linear layout holds codes up to {limit}")]
    CodeTooLarge { column: usize, code: u32, limit: u32 },
    #[error("the image would have {words} words, which pointers of {pointer_bytes} bytes cannot address")]
    PointersTooNarrow { words: u64, pointer_bytes: usize },
    #[error("no memory for {bytes} bytes")]
    NoMemory { bytes: u64 },
    #[error("a build with {bytes} bytes of memory is not possible: it needs {needed}")]
    MemoryTooSmall { bytes: usize, needed: usize },
    #[error("cannot {action} {file}: {reason}")]
    FailedFile { action: &'static str, file: String, reason: String },
    #[error("the file for the image is not empty: it has {bytes} bytes")]
    OutputNotEmpty { bytes: u64 },
    #[error("row ids of this Elf are below {bound}, which 32 bits cannot hold: ask for 64 bits")]
    IdsTooNarrow { bound: u64 },
    #[error("a bitmap of {found} rows is too short: row ids of this Elf are below {bound}")]
    BitmapTooShort { found: u64, bound: u64 },
    #[error("{ids} row ids were given for {rows} rows")]
    WrongNumberOfIds { ids: usize, rows: usize },
    #[error("row ids do not ascend, or the last one is 2^64 - 1")]
    UnsortedIds,
    #[error("the row id {id} is too large: {layout} holds ids up to {limit}")]
    IdTooLarge { id: u64, layout: &'static str, limit: u64 },
    #[error("there is no row {id}: row ids are below {bound}")]
    UnknownRow { id: u64, bound: u64 },
    #[error("the dictionary of column `{column}` is that of another column, `{found}`, or of another type")]
    ForeignDictionary { column: String, found: String },
    #[error("an Elf that changes needs its table beside it")]
    NoTable,
    #[error("the table holds {expected}, but {found} were given")]
    WrongContents { expected: &'static str, found: &'static str },
    #[error("the table beside the Elf is another one: it has {found} instead of {expected}")]
    ForeignTable { found: String, expected: String },
    #[error("{what}, at byte {at}: {around}")]
    BadCondition { what: String, at: usize, around: String },
    #[error("this is no Elf image: it has {bytes} bytes, less than a header of 64")]
    ShortHeader { bytes: usize },
    #[error("this is no Elf image: its first eight bytes are not the mark of one")]
    BadMagic,
    #[error("the image has format {found}; this version reads format {expected}")]
    UnknownFormat { found: u16, expected: u16 },
    #[error("the image has the layout {found}, where {expected} was expected")]
    WrongLayout { found: u8, expected: &'static str },
    #[error("the image was not completed: its state is {state}")]
    Incomplete { state: u32 },
    #[error("the image has {found} bytes; its header says {expected}")]
    WrongSize { found: u64, expected: u64 },
    #[error("the image is damaged: its checksum is {found:#018x} instead of {expected:#018x}")]
    BadChecksum { found: u64, expected: u64 },
    #[error("the image is damaged at byte {at}: {what}")]
    Damaged { at: u64, what: &'static str },
    #[error("a {what} of the table is damaged: {reason}")]
    DamagedTable { what: &'static str, reason: &'static str },
    #[error("no memory for a copy of {bytes} bytes")]
    NoMemoryForCopy { bytes: u64 },
    #[error("cannot {action} the file of an Elf: {reason}")]
    Storage { action: &'static str, reason: String },
    #[error("the file is in use: one process may publish images in it, or several may read it")]
    FileInUse,
    #[error("the file exists and is not empty")]
    FileExists,
    #[error("this is no file of Elf images: its first eight bytes are not the mark of one")]
    BadFile,
    #[error("the file has no image: none was published yet")]
    NothingPublished,
    #[error("the file is damaged: its root leads to byte {root} of {bytes}, where no image can be")]
    BadRoot { root: u64, bytes: u64 },
}
