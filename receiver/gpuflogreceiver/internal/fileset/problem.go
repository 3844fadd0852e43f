// SPDX-License-Identifier: Apache-2.0

package fileset

import "github.com/gpuflight/gpuflight/internal/gpuflog"

// Reason says what is wrong with a file. The values are stable: they become metric attributes.
type Reason string

// All reasons. Offsets are in uncompressed bytes of the window.
const (
	// TruncatedGzip: a gzip file ends in the middle, and has not grown for the grace period. Offset is how far it goes.
	TruncatedGzip Reason = "truncated_gzip"
	// CorruptGzip: a gzip file cannot be inflated beyond Offset, or its checksum is wrong.
	CorruptGzip Reason = "corrupt_gzip"
	// LineTooLong: Length bytes from Offset on, newline included, were skipped.
	LineTooLong Reason = "line_too_long"
	// FileShrunk: the file is shorter (Length) than what was read (Offset); a live one is read again from its beginning.
	// After a restart, a new file that got the inode of a vanished one looks the same.
	FileShrunk Reason = "file_shrunk"
	// FileVanished: the file is gone, and was read up to Offset only; Length bytes are known to be lost (0: not known).
	FileVanished Reason = "file_vanished"
	// FileReplaced: the name now holds other data; the old data was read up to Offset only.
	FileReplaced Reason = "file_replaced"
	// Permission: the file or folder may not be read. It is tried again.
	Permission Reason = "permission"
	// NotRegular: the name belongs to a fifo, socket, device or folder, which is not read.
	NotRegular Reason = "not_regular"
	// ReadError: any other error of the operating system. It is tried again.
	ReadError Reason = "read_error"
	// TextAfterTail: an unterminated tail was delivered, and later the same line went on. What follows is delivered too.
	TextAfterTail Reason = "text_after_tail"
	// WindowMissing: Count windows from number Number on do not exist. If one comes later it is read then.
	WindowMissing Reason = "window_missing"
	// WindowLost: a loss marker says that window Number was lost by the recorder or its agent.
	WindowLost Reason = "window_lost"
	// OutOfOrder: this window is older than data already delivered; it came late and is read now.
	OutOfOrder Reason = "out_of_order"
	// UnexpectedName: a data file with a name that its layout does not have. It is not read.
	UnexpectedName Reason = "unexpected_name"
	// TooManyWindows: a stream has more files than are remembered.
	TooManyWindows Reason = "too_many_windows"
	// TooManyGroups: there are more sessions than Config.MaxGroups; Path is the first that is left out.
	TooManyGroups Reason = "too_many_groups"
	// TooDeep: a folder below Config.MaxDepth is not searched.
	TooDeep Reason = "too_deep"
)

// Problem is one thing that went wrong, to be counted by reason and told once.
type Problem struct {
	Reason  Reason
	Path    string
	Channel gpuflog.Channel // meaningless for problems that Scan returns
	Offset  int64           // see the reason; 0 where it means nothing
	Length  int64           // see the reason; 0 where it means nothing
	Number  uint64          // window number; 0 if it has none
	Count   int             // how many things this stands for, at least 1
	Err     error           // the cause, or nil
}

// maxProblems bounds what waits to be told per stream; further ones raise the last one's Count.
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
