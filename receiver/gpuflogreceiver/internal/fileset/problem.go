// SPDX-License-Identifier: Apache-2.0

package fileset

import "github.com/gpuflight/gpuflight/internal/gpuflog"

// Reason is the kind of a problem. The values are stable: they become metric attributes.
type Reason string

// All reasons. Offsets are in uncompressed bytes of the log file.
const (
	// TruncatedGzip: a gzip file is truncated and has not grown for the grace period. Offset is its
	// readable length.
	TruncatedGzip Reason = "truncated_gzip"
	// CorruptGzip: a gzip file cannot be decompressed beyond Offset, or its checksum is wrong.
	CorruptGzip Reason = "corrupt_gzip"
	// LineTooLong: Length bytes from Offset on, newline included, were skipped.
	LineTooLong Reason = "line_too_long"
	// FileShrunk: the file is shorter (Length) than what was read (Offset); a live one is read
	// again from its beginning. After a restart, a new file that got the inode of a vanished one
	// looks the same.
	FileShrunk Reason = "file_shrunk"
	// FileVanished: the file is gone, and was read up to Offset only; Length bytes are known to be
	// lost (0: not known).
	FileVanished Reason = "file_vanished"
	// FileReplaced: the name now holds other data; the old data was read up to Offset only.
	FileReplaced Reason = "file_replaced"
	// Permission: the file or folder may not be read. Reading is retried.
	Permission Reason = "permission"
	// NotRegular: the name belongs to a FIFO, socket, device or folder, which is not read.
	NotRegular Reason = "not_regular"
	// ReadError: any other error of the operating system. Reading is retried.
	ReadError Reason = "read_error"
	// TextAfterTail: an unterminated tail was delivered, and later the same line continued. The
	// rest is delivered too.
	TextAfterTail Reason = "text_after_tail"
	// WindowMissing: Count log files from number Number on do not exist. A late one is still read.
	WindowMissing Reason = "window_missing"
	// WindowLost: a loss marker reports that the recorder or its agent lost log file Number.
	WindowLost Reason = "window_lost"
	// OutOfOrder: this late log file is older than delivered data. It is read now.
	OutOfOrder Reason = "out_of_order"
	// UnexpectedName: the layout has no data file with this name. The file is not read.
	UnexpectedName Reason = "unexpected_name"
	// TooManyWindows: a stream has more files than the bound.
	TooManyWindows Reason = "too_many_windows"
	// TooManyGroups: there are more sessions than Config.MaxGroups. Path is the first skipped one.
	TooManyGroups Reason = "too_many_groups"
	// TooDeep: a folder below Config.MaxDepth is not searched.
	TooDeep Reason = "too_deep"
)

// Problem is one problem, to be counted by reason and reported once.
type Problem struct {
	Reason  Reason
	Path    string
	Channel gpuflog.Channel // Unset in problems of Scan.
	Offset  int64           // See the reason; 0 if unused.
	Length  int64           // See the reason; 0 if unused.
	Number  uint64          // File number, or 0.
	Count   int             // Number of problems, at least 1.
	Err     error           // the cause, or nil
}

// maxProblems bounds the unreported problems per stream. Further ones increase the last one's
// Count.
const maxProblems = 64

func addProblem(list []Problem, p Problem) []Problem {
	if p.Count == 0 {
		p.Count = 1
	}
	if len(list) >= maxProblems {
		list[len(list)-1].Count += p.Count
		return list
	}
	return append(list, p)
}
