//! Encoding of tables that are read once, in any order of columns and rows.
//!
//! A value gets a provisional code when it first appears. At the end the distinct values are sorted, and their
//! ranks replace the provisional codes. So a table takes 4 bytes per value while it is read, and each distinct
//! value once.

use std::collections::HashMap;
use std::hash::Hash;

use crate::dictionary::{Dictionary, Distinct, stored};
use crate::error::{Error, Result};
use crate::schema::{Column, ColumnType, Schema, Value};
use crate::table::CodeTable;

/// Provisional codes of the distinct values seen so far, from 1 on.
#[derive(Clone, Debug)]
enum Seen {
    Numbers(HashMap<i128, u32>),
    Strings(HashMap<Box<str>, u32>),
}

/// Collects the values of one column, row by row.
#[derive(Clone, Debug)]
pub struct ColumnEncoder {
    column: Column,
    seen: Seen,
    codes: Vec<u32>,
}

impl ColumnEncoder {
    fn new(column: &Column) -> Self {
        let seen = match column.kind {
            ColumnType::String => Seen::Strings(HashMap::new()),
            _ => Seen::Numbers(HashMap::new()),
        };
        Self { column: column.clone(), seen, codes: Vec::new() }
    }

    /// Appends a value. Fails if it is not one of the column's type, is NULL in a column without NULL, or cannot
    /// be written in the column's scale, and if 32 bits cannot count the distinct values.
    pub fn push(&mut self, value: &Value) -> Result<()> {
        self.column.check(value)?;
        match value {
            Value::Null => {
                self.codes.push(Dictionary::NULL);
                Ok(())
            }
            Value::String(string) => self.push_str(string),
            _ => self.push_unscaled(stored(&self.column, value)?),
        }
    }

    /// Appends a string. Fails like [`push`](Self::push).
    pub fn push_str(&mut self, string: &str) -> Result<()> {
        let Seen::Strings(seen) = &mut self.seen else {
            return Err(self.column.wrong_type(&Value::String(string.to_owned())));
        };
        let code = match seen.get(string) {
            Some(&code) => code,
            None => first(seen, string.into(), &self.column)?,
        };
        self.codes.push(code);
        Ok(())
    }

    /// Appends an integer, a number of days, or a decimal without its point, which stands where the column's scale
    /// says. Fails like [`push`](Self::push).
    pub fn push_unscaled(&mut self, number: i128) -> Result<()> {
        let value = || Value::Decimal { unscaled: number, scale: 0 };
        let Seen::Numbers(seen) = &mut self.seen else { return Err(self.column.wrong_type(&value())) };
        let fits = match self.column.kind {
            ColumnType::Integer => i64::try_from(number).is_ok(),
            ColumnType::Date => i32::try_from(number).is_ok(),
            ColumnType::Decimal { .. } | ColumnType::String => true,
        };
        if !fits {
            return Err(self.column.wrong_type(&value()));
        }
        let code = match seen.get(&number) {
            Some(&code) => code,
            None => first(seen, number, &self.column)?,
        };
        self.codes.push(code);
        Ok(())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// Takes the codes of the values so far, which [`into_dictionary`](Self::into_dictionary) translates. So a
    /// caller can keep them elsewhere while the table is read.
    pub fn take_provisional(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.codes)
    }

    /// The dictionary of all values, and the code of each provisional one.
    pub fn into_dictionary(self) -> (Dictionary, Vec<u32>) {
        let (distinct, ranks) = match self.seen {
            Seen::Numbers(seen) => {
                let (values, ranks) = ranked(seen);
                (Distinct::Numbers(values), ranks)
            }
            Seen::Strings(seen) => {
                let (values, ranks) = ranked(seen);
                (Distinct::Strings(values), ranks)
            }
        };
        (Dictionary::of(self.column, distinct), ranks)
    }

    fn finish(mut self) -> (Dictionary, Vec<u32>) {
        let mut codes = self.take_provisional();
        let (dictionary, ranks) = self.into_dictionary();
        codes.iter_mut().for_each(|code| *code = ranks[*code as usize]);
        (dictionary, codes)
    }
}

/// Gives `value` a provisional code.
fn first<T: Eq + Hash>(seen: &mut HashMap<T, u32>, value: T, column: &Column) -> Result<u32> {
    let code = u32::try_from(seen.len() + 1);
    let code = code.map_err(|_| Error::TooManyValues { column: column.name.clone() })?;
    seen.insert(value, code);
    Ok(code)
}

/// The values, ascending, and the code of each provisional code.
fn ranked<T: Ord>(seen: HashMap<T, u32>) -> (Vec<T>, Vec<u32>) {
    let mut sorted: Vec<(T, u32)> = seen.into_iter().collect();
    sorted.sort_unstable();
    let mut ranks = vec![Dictionary::NULL; sorted.len() + 1];
    for (rank, (_, provisional)) in sorted.iter().enumerate() {
        ranks[*provisional as usize] = rank as u32 + 1;
    }
    (sorted.into_iter().map(|(value, _)| value).collect(), ranks)
}

/// A table as codes, with the dictionaries of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedTable {
    pub schema: Schema,
    /// One per column.
    pub dictionaries: Vec<Dictionary>,
    pub codes: CodeTable,
}

impl EncodedTable {
    /// Encodes `columns[c][row]`. Fails if values do not fit the schema, and if columns differ in length.
    pub fn encode(schema: Schema, columns: &[Vec<Value>]) -> Result<Self> {
        if columns.len() != schema.columns().len() {
            return Err(Error::WrongArity { values: columns.len(), columns: schema.columns().len() });
        }
        let mut encoder = TableEncoder::new(schema);
        for (number, values) in columns.iter().enumerate() {
            let column = encoder.column(number);
            values.iter().try_for_each(|value| column.push(value))?;
        }
        encoder.finish()
    }
}

/// Collects a table. Columns may be filled one after the other or side by side.
///
/// ```
/// use pando_elf::{Column, ColumnType, Schema, TableEncoder, Value};
/// let columns = vec![Column::new("day", ColumnType::Date), Column::new("mode", ColumnType::String)];
/// let mut encoder = TableEncoder::new(Schema::new(columns)?);
/// for (day, mode) in [(8_766, "RAIL"), (8_760, "AIR")] {
///     encoder.column(0).push_unscaled(day)?;
///     encoder.column(1).push_str(mode)?;
/// }
/// let table = encoder.finish()?;
/// assert_eq!(table.codes.code(1, 0), 2);
/// assert_eq!(table.dictionaries[0].value(1)?, Value::Date(8_760));
/// # Ok::<(), pando_elf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TableEncoder {
    schema: Schema,
    columns: Vec<ColumnEncoder>,
}

impl TableEncoder {
    pub fn new(schema: Schema) -> Self {
        let columns = schema.columns().iter().map(ColumnEncoder::new).collect();
        Self { schema, columns }
    }

    /// The column with the given number, which is below the schema's.
    pub fn column(&mut self, number: usize) -> &mut ColumnEncoder {
        &mut self.columns[number]
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The columns, in the order of the schema.
    pub fn into_columns(self) -> Vec<ColumnEncoder> {
        self.columns
    }

    /// Encodes the table. Fails if columns differ in length.
    pub fn finish(self) -> Result<EncodedTable> {
        let (dictionaries, codes): (Vec<_>, Vec<_>) =
            self.columns.into_iter().map(ColumnEncoder::finish).unzip();
        Ok(EncodedTable { schema: self.schema, dictionaries, codes: CodeTable::new(codes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_coded_by_rank_whatever_their_order() {
        let column = Column::new("price", ColumnType::Decimal { scale: 1 }).nullable();
        let mut encoder = TableEncoder::new(Schema::new(vec![column]).expect("one name"));
        let values =
            [Value::Integer(7), Value::Null, Value::Decimal { unscaled: -5, scale: 1 }, Value::Integer(7)];
        values.iter().for_each(|value| encoder.column(0).push(value).expect("a decimal or NULL"));
        let table = encoder.finish().expect("one column");
        assert_eq!(table.codes.column(0).iter().collect::<Vec<_>>(), [2, 0, 1, 2]);
        let whole = Dictionary::new(&table.schema.columns()[0], values.iter()).expect("decimals");
        assert_eq!(table.dictionaries, [whole]);
    }

    #[test]
    fn wrong_values_are_refused() {
        let columns = vec![Column::new("n", ColumnType::Integer), Column::new("d", ColumnType::Date)];
        let mut encoder = TableEncoder::new(Schema::new(columns).expect("two names"));
        assert!(encoder.column(0).push(&Value::Null).is_err());
        assert!(encoder.column(0).push_str("7").is_err());
        assert!(encoder.column(0).push_unscaled(i128::from(i64::MAX) + 1).is_err());
        assert!(encoder.column(1).push_unscaled(i128::from(i32::MIN) - 1).is_err());
        assert!(encoder.column(0).push_unscaled(7).is_ok());
        let uneven = Error::UnevenColumns { column: 1, rows: 0, expected: 1 };
        assert_eq!(encoder.finish().err(), Some(uneven));
    }

    #[test]
    fn a_table_is_encoded_by_column() {
        let columns =
            vec![Column::new("a", ColumnType::Date), Column::new("b", ColumnType::Integer).nullable()];
        let schema = Schema::new(columns).expect("two names");
        let values = [vec![Value::Date(9), Value::Date(-4)], vec![Value::Null, Value::Integer(5)]];
        let table = EncodedTable::encode(schema.clone(), &values).expect("values of these types");
        assert_eq!(
            [[0, 0], [0, 1], [1, 0], [1, 1]].map(|[column, row]| table.codes.code(column, row)),
            [2, 1, 0, 1]
        );
        let uneven = EncodedTable::encode(schema.clone(), &[vec![Value::Date(9)], vec![]]);
        assert_eq!(uneven.err(), Some(Error::UnevenColumns { column: 1, rows: 0, expected: 1 }));
        let few = EncodedTable::encode(schema, &[vec![]]);
        assert_eq!(few.err(), Some(Error::WrongArity { values: 1, columns: 2 }));
    }
}
