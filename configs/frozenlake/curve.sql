-- Share of attempts that reach the goal, and their moves, by the policy version of the first move, over five versions
-- at a time.
select m.version_min / 5 * 5 as policy_version,
       round(avg(a.reward)::numeric, 3) as goals_reached,
       round(avg(a.moves) filter (where a.reward = 1), 2) as moves_to_the_goal
from rollout m
join run r on r.id = m.run_id
join lateral (select sum(e.reward) as reward, count(*) as moves from experience e where e.rollout_id = m.id) a on true
where r.name = 'frozenlake' and m.state = 'finished'
group by 1
order by 1
