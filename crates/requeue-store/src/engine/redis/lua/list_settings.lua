-- Takes one step of a scan of the settings of groups. The argument is the cursor of the last step. Answers with the new
-- cursor, and the groups with their settings.
return redis.call('HSCAN', GROUP_SETTINGS, ARGV[1], 'COUNT', 500)
