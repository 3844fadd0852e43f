// SPDX-License-Identifier: Apache-2.0

package probe

// Skip describes a file, or a process with all its files, that is not observed.
type Skip struct {
	// Reason is one of the Skip constants.
	Reason string
	// UID is the user of the process. Path is the file as the process names it, or the folder of
	// the process in /proc.
	UID  uint32
	Path string
	// Err has details; it may be nil.
	Err error
}

// Reasons of a [Skip].
const (
	// SkipUserShare and SkipTotalShare: the limit of files, bytes and time of one scan is used up,
	// for the user or for all users.
	SkipUserShare  = "user_share"
	SkipTotalShare = "total_share"
	// SkipUserAttached and SkipTotalAttached: the limit of attached libraries is used up, for the
	// user or for all users.
	SkipUserAttached  = "user_attached"
	SkipTotalAttached = "total_attached"
	// SkipUnresponsive: reading timed out, or earlier reads for the same user have not returned.
	SkipUnresponsive = "unresponsive"
	// SkipChanged: the path names another file or no regular file.
	SkipChanged = "changed"
	// SkipUntrusted: the file system is served by a user.
	SkipUntrusted = "untrusted"
	// SkipUnreadable: open failed, for example for lack of a capability.
	SkipUnreadable = "unreadable"
	// SkipMalformed: not a library, or larger than the limits.
	SkipMalformed = "malformed"
)
